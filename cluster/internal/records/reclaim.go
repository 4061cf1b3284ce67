package records

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/penstock-data/penstock/internal/fault"
)

// Reclaim makes room in the embedded etcd after a write failed with fault.Exhausted: it drops the history (watches that have not seen it yet get Reset), gives free pages back, and lets writes in again.
// That helps if much was written in the last hour, or if records were deleted, which is possible also when the store is full. All calls wait meanwhile, seconds per GiB; only ctx limits its own time. Open
// does it where it is needed. It is safe to repeat.
//
// Errors: Exhausted: what is left needs more than the quota. Unsupported: the etcd is an external one, which is its keeper's.
func (s *Store) Reclaim(ctx context.Context) error {
	if s.server == nil {
		return fault.New(fault.Unsupported, "%s is not ours to clean: have its history compacted, its members defragmented and its alarm disarmed (etcdctl compact, defrag, alarm disarm)", s.name())
	}
	const what = "making room"
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })()
	admin := pb.NewMaintenanceClient(s.client.ActiveConnection())
	at, err := s.client.Get(ctx, s.opts.Prefix+"cluster", clientv3.WithKeysOnly())
	if err == nil {
		_, err = s.client.Compact(ctx, at.Header.Revision, clientv3.WithCompactPhysical())
		if errors.Is(err, rpctypes.ErrCompacted) { // no write since
			err = nil
		}
	}
	if err == nil {
		_, err = admin.Defragment(ctx, &pb.DefragmentRequest{})
	}
	var size *pb.StatusResponse
	if err == nil {
		size, err = admin.Status(ctx, &pb.StatusRequest{})
	}
	if err != nil {
		return s.fault(ctx, rpctypes.Error(err), what)
	}
	if size.DbSize > s.opts.Quota-s.opts.Quota/10 {
		return s.fault(ctx, rpctypes.ErrNoSpace, what)
	}
	alarms, err := admin.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
	if err == nil {
		for _, a := range alarms.Alarms {
			if a.Alarm == pb.AlarmType_NOSPACE {
				_, err = admin.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: a.MemberID, Alarm: a.Alarm})
			}
		}
	}
	if err != nil {
		return s.fault(ctx, rpctypes.Error(err), what)
	}
	return nil
}

// full reports whether etcd takes no writes, as it had no room once.
func (s *Store) full(ctx context.Context) (bool, error) {
	full := false
	err := s.read(ctx, "connecting", func(ctx context.Context) error {
		r, err := pb.NewMaintenanceClient(s.client.ActiveConnection()).Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
		if err != nil {
			return rpctypes.Error(err)
		}
		for _, a := range r.Alarms {
			full = full || a.Alarm == pb.AlarmType_NOSPACE
		}
		return nil
	})
	return full, err
}
