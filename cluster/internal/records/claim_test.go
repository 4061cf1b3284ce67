package records

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// childClaim claims RECORDS_ENDPOINT for the folder RECORDS_DIR, says so, and then writes and renews as fast as it can, until it cannot: it says why.
func childClaim() {
	ctx := context.Background()
	s, err := Open(ctx, Options{Endpoints: []string{os.Getenv("RECORDS_ENDPOINT")}})
	if err != nil {
		say("error %v", err)
		return
	}
	ttl, err := time.ParseDuration(os.Getenv("RECORDS_TTL"))
	if err == nil {
		err = s.Claim(ctx, os.Getenv("RECORDS_DIR"), ttl)
	}
	if err != nil {
		say("error %v", err)
		return
	}
	lease, err := s.Grant(ctx, time.Hour)
	say("claimed %s %d", s.writer, lease.ID)
	for err == nil {
		if _, err = s.Next(ctx, "work"); err == nil {
			_, err = s.KeepAlive(ctx, lease.ID)
		}
	}
	<-s.Failed()
	if r := s.Revoke(ctx, lease.ID); r == nil {
		say("error: it ended a lease")
	}
	say("lost: %v", s.Err())
}

// claimer starts one, and gives the prefix of its writes.
func claimer(t *testing.T, endpoint, dir string, ttl time.Duration) (c *child, writer string, lease LeaseID) {
	t.Helper()
	c = start(t, "claim", "RECORDS_ENDPOINT="+endpoint, "RECORDS_DIR="+dir, "RECORDS_TTL="+ttl.String())
	if _, err := fmt.Sscanf(c.line(t), "claimed %s %d", &writer, &lease); err != nil {
		t.Fatal(err)
	}
	return c, writer, lease
}

// One store at a time has the claim: the second is refused while the first is there, and follows when it is closed.
func TestClaim(t *testing.T) {
	_, endpoint := external(t, t.TempDir())
	opts := Options{Endpoints: []string{endpoint}}
	ctx, dir := within(t), t.TempDir()
	s := open(t, opts)
	if err := s.Claim(ctx, dir, 3*time.Second); err != nil {
		t.Fatal(err)
	}
	second := open(t, opts)
	err := second.Claim(ctx, t.TempDir(), 3*time.Second)
	wantCode(t, err, fault.Exists)
	host, _ := os.Hostname()
	has(t, err, "the head on "+host, fmt.Sprintf("process %d", os.Getpid()), dir, "one head at a time", "--store-prefix")
	err = second.Claim(ctx, dir, 3*time.Second)
	wantCode(t, err, fault.Exists)
	has(t, err, "another process has the store in "+dir)
	opts.Prefix = "/other/"
	if err := open(t, opts).Claim(ctx, t.TempDir(), 3*time.Second); err != nil { // that is another cluster's
		t.Fatal(err)
	}
	if _, err := s.Next(ctx, "n"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	if err := second.Claim(ctx, t.TempDir(), time.Hour); err != nil { // it waits for no lease
		t.Fatal(err)
	}
	if n, err := second.Next(ctx, "n"); err != nil || n != 2 {
		t.Fatal(n, err)
	}
}

// A holder that is there writes nothing for that: it is seen by its lease, also in an etcd that is full.
func TestClaimIsQuiet(t *testing.T) {
	_, endpoint := external(t, t.TempDir())
	opts := Options{Endpoints: []string{endpoint}}
	s, second := open(t, opts), open(t, opts)
	if err := s.Claim(within(t), t.TempDir(), 2*time.Second); err != nil {
		t.Fatal(err)
	}
	_, err := pb.NewMaintenanceClient(s.client.ActiveConnection()).Alarm(within(t), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, second.Claim(within(t), t.TempDir(), 2*time.Second), fault.Exists)
	was := s.claim.Load().confirmed.Load()
	if !memtest.Poll(30*time.Second, func() bool { return s.claim.Load().confirmed.Load() != was }) {
		t.Error("the claim is not confirmed")
	}
	now, err := s.client.Get(within(t), DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := now.Header.Revision, s.claim.Load().holder.Revision; got != want {
		t.Errorf("the store is at revision %d, after the claim at %d", got, want)
	}
}

// Of several that want it at once, one gets it.
func TestClaimRace(t *testing.T) {
	_, endpoint := external(t, t.TempDir())
	errs := make([]error, 6)
	var all sync.WaitGroup
	for i := range errs {
		s := open(t, Options{Endpoints: []string{endpoint}})
		dir := t.TempDir()
		all.Go(func() { errs[i] = s.Claim(within(t), dir, 3*time.Second) })
	}
	all.Wait()
	oneWins(t, errs)
}

// A holder that was killed is followed at once in its own folder, and after its lease in another.
func TestClaimAfterKill(t *testing.T) {
	_, endpoint := external(t, t.TempDir())
	dir := t.TempDir()
	first, _, _ := claimer(t, endpoint, dir, time.Hour)
	first.kill()
	again, _, _ := claimer(t, endpoint, dir, 2*time.Second) // the lease of an hour is not waited for
	s := open(t, Options{Endpoints: []string{endpoint}})
	began := time.Now()
	again.kill()
	if err := s.Claim(within(t), t.TempDir(), 2*time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < time.Second { // two thirds of it were left at least
		t.Errorf("the claim was taken %v after the kill", took)
	}
}

// A holder that stood still for longer than its lease, and was followed, writes nothing when it wakes up.
func TestClaimAfterStop(t *testing.T) {
	_, endpoint := external(t, t.TempDir())
	first, writer, lease := claimer(t, endpoint, t.TempDir(), 2*time.Second)
	if err := first.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{Endpoints: []string{endpoint}})
	if err := s.Claim(within(t), t.TempDir(), 2*time.Second); err != nil {
		t.Fatal(err)
	}
	claimed := s.claim.Load().holder.Revision
	left := func() int64 {
		r, err := s.client.TimeToLive(within(t), clientv3.LeaseID(lease))
		if err != nil {
			t.Fatal(err)
		}
		return r.TTL
	}
	if !memtest.Poll(time.Minute, func() bool { return left() <= 3597 }) { // the last renewal of the first was long enough ago for another to be seen
		t.Fatal("the lease does not run out")
	}
	if err := first.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	said := first.line(t)
	if !strings.HasPrefix(said, "lost: ") || !strings.Contains(said, fmt.Sprintf("process %d", os.Getpid())) || !strings.Contains(said, "writes nothing any more") {
		t.Fatal(said)
	}
	if n := left(); n > 3597 {
		t.Errorf("the first renewed its lease: %d s are left", n)
	}
	if _, err := s.Next(within(t), "work"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	now, err := s.client.Get(ctx, DefaultPrefix+"seq/work")
	if err != nil {
		t.Fatal(err)
	}
	for r := range s.client.Watch(ctx, DefaultPrefix, clientv3.WithPrefix(), clientv3.WithRev(claimed)) {
		for _, e := range r.Events {
			var in stored
			if err := json.Unmarshal(e.Kv.Value, &in); e.Type == clientv3.EventTypePut && (err != nil || strings.HasPrefix(in.Write, writer) || !strings.HasPrefix(in.Write, s.writer)) {
				t.Errorf("%s was written after the claim by %s: %v", e.Kv.Key, in.Write, err)
			}
			if e.Kv.ModRevision >= now.Kvs[0].ModRevision {
				cancel()
			}
		}
	}
}

// The store stands still for longer than the lease, and nobody else wants it: the holder goes on.
func TestClaimStoreAway(t *testing.T) {
	etcd, endpoint := external(t, t.TempDir())
	s := open(t, Options{Endpoints: []string{endpoint}})
	if err := s.Claim(within(t), t.TempDir(), 2*time.Second); err != nil {
		t.Fatal(err)
	}
	gone := func() bool {
		r, err := s.client.Get(within(t), s.key(claimTable, aliveID))
		if err != nil {
			t.Fatal(err)
		}
		return len(r.Kvs) == 0
	}
	was, away := s.claim.Load().confirmed.Load(), time.After(3*time.Second)
	if err := etcd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	<-away
	if err := etcd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if !memtest.Poll(time.Minute, func() bool { return s.claim.Load().confirmed.Load() != was && !gone() }) { // it says that it is there, in a lease of its own
		t.Fatal("the claim was not confirmed again")
	}
	if _, err := s.Next(within(t), "n"); err != nil || s.Err() != nil {
		t.Fatal(err, s.Err())
	}
}
