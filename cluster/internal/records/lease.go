package records

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/penstock-data/penstock/internal/fault"
)

// LeaseID names a lease; it is random and not 0.
type LeaseID int64

// Lease is a time that ends unless it is renewed. The records attached to it go when it ends, at once, up to a second late: etcd looks twice a second.
//
// When the embedded etcd starts again, or an external one has a new leader, every lease that had not ended gets its full time again. The time in which etcd does not run does not count; that in which its
// process stands still (SIGSTOP, a machine that sleeps) does: it then finds leases ended before anybody could renew them.
type Lease struct {
	ID  LeaseID
	TTL time.Duration // granted: whole seconds, and not below what etcd does not go below (1 s embedded, 2 s in the usual external one)
}

// Grant makes a lease of at least ttl. When the call fails, there may be a lease that nobody knows: it ends after ttl.
// Exhausted: the store is full. Invalid: ttl is not above 0 or more than a year.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (Lease, error) {
	if ttl <= 0 || ttl > 365*24*time.Hour {
		return Lease{}, fault.New(fault.Invalid, "a lease of %v: it must be above 0, and a year at most", ttl)
	}
	if err := s.mine(ctx); err != nil {
		return Lease{}, err
	}
	id := newLeaseID()
	l := Lease{}
	err := s.repeat(ctx, "granting a lease", "", func(ctx context.Context, doubt bool) error {
		r, err := s.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: id, TTL: int64((ttl + time.Second - 1) / time.Second)})
		if err = rpctypes.Error(err); err == nil {
			l = Lease{LeaseID(r.ID), time.Duration(r.TTL) * time.Second}
			return nil
		}
		if !errors.Is(err, rpctypes.ErrLeaseExist) || !doubt {
			return err
		}
		// It is that of the attempt whose answer was lost.
		live, err := s.leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: id})
		if err != nil {
			return rpctypes.Error(err)
		}
		l = Lease{LeaseID(id), time.Duration(live.GrantedTTL) * time.Second}
		return nil
	})
	return l, err
}

func newLeaseID() int64 {
	for {
		var b [8]byte
		rand.Read(b[:])
		if id := int64(binary.LittleEndian.Uint64(b[:]) >> 1); id != 0 {
			return id
		}
	}
}

// KeepAlive gives a lease its full time again, once, and returns that. It is safe to repeat. NotFound: the lease has ended.
func (s *Store) KeepAlive(ctx context.Context, id LeaseID) (time.Duration, error) {
	if err := s.mine(ctx); err != nil {
		return 0, err
	}
	var ttl int64
	err := s.read(ctx, "renewing "+id.String(), func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx) // ends the stream
		defer cancel()
		stream, err := s.leases.LeaseKeepAlive(ctx)
		if err != nil {
			return rpctypes.Error(err)
		}
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
			return rpctypes.Error(err)
		}
		r, err := stream.Recv()
		if err != nil {
			return rpctypes.Error(err)
		}
		if ttl = r.TTL; ttl <= 0 {
			return rpctypes.ErrLeaseNotFound
		}
		return nil
	})
	return time.Duration(ttl) * time.Second, err
}

// ends says when a lease ends, unless it is renewed: etcd says so in whole seconds. earliest is zero where that may be over: the lease is there for a while longer.
func (s *Store) ends(ctx context.Context, id LeaseID) (earliest, latest time.Time, err error) {
	err = s.read(ctx, "looking at "+id.String(), func(ctx context.Context) error {
		sent := time.Now()
		r, err := s.leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: int64(id)})
		if err != nil {
			return rpctypes.Error(err)
		}
		left := time.Duration(max(r.TTL, 0)) * time.Second
		if earliest = (time.Time{}); left > 0 {
			earliest = sent.Add(left)
		}
		latest = time.Now().Add(left + time.Second)
		return nil
	})
	return earliest, latest, err
}

// Revoke ends a lease now. It is safe to repeat: a lease that has ended is no error.
func (s *Store) Revoke(ctx context.Context, id LeaseID) error {
	if err := s.mine(ctx); err != nil {
		return err
	}
	return s.read(ctx, "ending "+id.String(), func(ctx context.Context) error {
		_, err := s.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(id)})
		if err = rpctypes.Error(err); errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil
		}
		return err
	})
}

func (id LeaseID) String() string { return fmt.Sprintf("lease %x", int64(id)) }
