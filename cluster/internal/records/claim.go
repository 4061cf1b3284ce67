package records

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/internal/fault"
)

// Holder is who may write.
type Holder struct {
	Host   string
	PID    int
	Folder string // the head's
	Place  string // of the folder, if it is known: who has the lock of that place is alone there. It changes when the machine starts again, and a copy of a folder has another
	Since  time.Time
}

func (h Holder) String() string {
	return fmt.Sprintf("the head on %s (process %d, folder %s, since %s)", h.Host, h.PID, h.Folder, h.Since.UTC().Format(time.RFC3339))
}

const (
	claimTable = "claim"
	holderID   = "holder" // a Holder: its revision is what all writes of the holder depend on
	aliveID    = "alive"  // attached to the holder's lease, which is renewed at each beat: it is there while the holder is
)

// claim is the right of a store to write.
type claim struct {
	holder    Record[Holder]
	ttl       time.Duration
	lock      *os.File
	confirmed atomic.Int64 // when, since began, the last beat was sent that was answered: for ttl after that nobody else can have the claim
	began     time.Time

	// the beating goroutine's, and Close's after it
	lease LeaseID
	alive Record[int64] // written where it is attached to another lease
	end   context.CancelFunc
	beats sync.WaitGroup
}

// Claim makes this store the only one that can write below its prefix, for the head whose folder is dir, until it is closed. Others wait for it to be gone: after a kill, for ttl since its last beat. From now on every
// transaction of this store depends on the claim. If another takes it, as this process stood still or had no etcd for longer than ttl, nothing more is written: all calls fail, Failed is closed, and Err names the other
// one. Where ttl has passed and nobody took it, it is still this store's.
//
// A process that has the same folder, of the same machine since it was started, follows at once: it has the folder's lock, so the one before it has ended.
//
// It is for external stores, and called once, before anything is written. Errors: Exists: another head has the claim, or the folder; the text names it. Those of Put, and of ctx.
func (s *Store) Claim(ctx context.Context, dir string, ttl time.Duration) error {
	lock, err := lockFolder(dir)
	if err != nil {
		return err
	}
	c := &claim{ttl: ttl, lock: lock, began: time.Now()}
	if err := s.take(ctx, c, dir); err != nil {
		unlock(lock)
		return err
	}
	life, end := context.WithCancel(s.ctx)
	c.end = end
	s.claim.Store(c)
	c.beats.Go(func() { s.beat(life, c) })
	return nil
}

// take writes who has the claim, once nobody else has.
func (s *Store) take(ctx context.Context, c *claim, dir string) error {
	holders, alives := In[Holder](s, claimTable), In[int64](s, claimTable)
	me := Holder{PID: os.Getpid(), Folder: dir, Place: placeOf(c.lock), Since: time.Now()}
	me.Host, _ = os.Hostname() // for people
	if abs, err := filepath.Abs(dir); err == nil {
		me.Folder = abs
	}
	var over time.Time // when the lease that was seen first ends at the latest, unless it is renewed
	for seen := LeaseID(0); ; {
		holder, err := holders.Get(ctx, holderID)
		if err != nil && fault.CodeOf(err) != fault.NotFound {
			return err
		}
		alive, err := alives.Get(ctx, aliveID)
		if err != nil && fault.CodeOf(err) != fault.NotFound {
			return err
		}
		if alive.Revision != 0 && (me.Place == "" || me.Place != holder.Value.Place) {
			earliest, latest, err := s.ends(ctx, alive.Lease)
			if err != nil {
				return err
			}
			if seen != 0 && (seen != alive.Lease || earliest.After(over)) {
				return fault.New(fault.Exists, "%s has the records in %s, and one head at a time can: stop that one, or give this one an etcd, or a --store-prefix, of its own", holder.Value, s.name())
			}
			if seen == 0 {
				s.opts.Log.Info(fmt.Sprintf("%s has the records in %s; waiting for a sign of it, or for the end of its lease", holder.Value, s.name()))
				seen, over = alive.Lease, latest
			}
			if err := sleep(ctx, min(c.ttl/8, 250*time.Millisecond)); err != nil {
				return err
			}
			continue
		}
		sent := time.Now()
		lease, err := s.Grant(ctx, c.ttl)
		if err != nil {
			return err
		}
		holder.ID, holder.Value = holderID, me
		alive.ID, alive.Lease = aliveID, lease.ID
		revision, err := s.Txn(ctx, holders.PutOp(holder), alives.PutOp(alive))
		if err == nil {
			holder.Revision, alive.Revision = revision, revision
			c.holder, c.alive, c.lease, c.ttl = holder, alive, lease.ID, lease.TTL
			c.confirmed.Store(int64(sent.Sub(c.began)))
			return nil
		}
		if _, ok := errors.AsType[*Conflict](err); !ok {
			return err
		}
		if err := s.Revoke(ctx, lease.ID); err != nil { // another was first
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
}

// beat says that the holder is there, until ctx ends. What it cannot say while etcd is away it says again when etcd is back, with a new lease if that took too long; another head may have been faster.
func (s *Store) beat(ctx context.Context, c *claim) {
	for wait := c.ttl / 3; sleep(ctx, wait) == nil; {
		sent := time.Now()
		wait = c.ttl / 3
		if s.confirm(ctx, c) == nil {
			c.confirmed.Store(int64(sent.Sub(c.began)))
		} else {
			wait = min(wait, 200*time.Millisecond)
		}
	}
}

// confirm renews the lease of a claim, and then sees that nobody else has the claim. It writes only where the lease is a new one: a head beats some thousand times a day.
func (s *Store) confirm(ctx context.Context, c *claim) error {
	_, err := s.KeepAlive(ctx, c.lease)
	if fault.CodeOf(err) == fault.NotFound {
		var lease Lease
		if lease, err = s.Grant(ctx, c.ttl); err == nil {
			c.lease = lease.ID
		}
	}
	if err != nil {
		return err
	}
	if c.alive.Lease == c.lease {
		return s.look(ctx, c)
	}
	next := c.alive
	next.Lease = c.lease
	if next, err = In[int64](s, claimTable).Put(ctx, next); err == nil {
		c.alive = next
	} else if other, ok := errors.AsType[*Conflict](err); ok { // it went with its lease; or an earlier one, whose answer was lost
		c.alive.Revision = other.Have
	}
	return err
}

// fence is what every transaction of a store that has a claim begins with.
func (s *Store) fence() (op Op, ok bool) {
	c := s.claim.Load()
	if c == nil {
		return Op{}, false
	}
	return In[Holder](s, claimTable).CheckOp(holderID, c.holder.Revision), true
}

// mine is for what cannot be in a transaction: it fails where another may have the claim, and has it.
func (s *Store) mine(ctx context.Context) error {
	c := s.claim.Load()
	if c == nil || time.Since(c.began)-time.Duration(c.confirmed.Load()) < c.ttl {
		return nil
	}
	return s.look(ctx, c)
}

// look fails where another has the claim.
func (s *Store) look(ctx context.Context, c *claim) error {
	now, err := In[Holder](s, claimTable).Get(ctx, holderID)
	if err != nil && fault.CodeOf(err) != fault.NotFound {
		return err
	}
	if now.Revision != c.holder.Revision {
		return s.lose(now.Value)
	}
	return nil
}

// lose ends the store: another head has the claim.
func (s *Store) lose(other Holder) error {
	who := other.String()
	if other == (Holder{}) {
		who = "somebody who removed the claim of this head"
	}
	s.losing.Do(func() {
		s.lostTo = fault.New(fault.Unavailable, "the records in %s are written by %s now: this head was not heard there for the time of its lease, and writes nothing any more; what runs on other nodes goes on", s.name(), who)
		s.cancel(s.lostTo)
		close(s.lost)
	})
	return s.lostTo
}

// yield gives the claim back, so that the next head need not wait.
func (s *Store) yield() {
	c := s.claim.Load()
	if c == nil {
		return
	}
	c.end()
	c.beats.Wait()
	if s.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(s.ctx, time.Second)
		if err := s.Revoke(ctx, c.lease); err != nil {
			s.opts.Log.Warn("the claim of this head ends by itself: the next one waits for that", "err", err)
		}
		cancel()
	}
	unlock(c.lock)
}

// lockFolder makes a head's folder, with mode 0700, and takes it for this process.
func lockFolder(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.WithCode(fault.Denied, err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fault.New(fault.Denied, "the folder of the head must belong to this user: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fault.WithCode(fault.Denied, err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fault.New(fault.Exists, "another process has the store in %s: stop the head that runs there, or give this one another folder", dir)
		}
		return nil, fault.New(fault.Unsupported, "the store in %s cannot be locked: choose a folder on a local file system: %w", dir, err)
	}
	return lock, nil
}

func unlock(lock *os.File) {
	_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN) // closing alone leaves it to a child that this process is just about to start
	lock.Close()
}

// placeOf names the place of a file on this machine since it was started; "": that is not known here.
func placeOf(f *os.File) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(int(f.Fd()), &st)
	}
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s/%d/%d", strings.TrimSpace(string(boot)), st.Dev, st.Ino)
}
