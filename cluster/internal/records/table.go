package records

import (
	"context"
	"encoding/json"
	"strings"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/penstock-data/penstock/internal/fault"
)

// Record is a value with its place.
type Record[T any] struct {
	ID       string
	Value    T
	Revision int64   // of the last write; 0: it is not in the store (yet)
	Lease    LeaseID // the record goes when this lease ends; 0: none
}

// Table is the records of one kind: those below PREFIX/name/. It is a small value, made by In.
//
// T is written and read as JSON. A field that T does not have is dropped when the record is written again: what one version of the program added, an older one loses.
type Table[T any] struct {
	store *Store
	name  string
}

// In is a table of a store. Its name has no slash.
func In[T any](s *Store, name string) Table[T] { return Table[T]{s, name} }

// stored is what is in etcd.
type stored struct {
	Write string          `json:"w"` // id of the write that made it
	Value json.RawMessage `json:"v"`
}

func (t Table[T]) decode(key string, data []byte, revision, lease int64) (Record[T], error) {
	id := strings.TrimPrefix(key, t.store.key(t.name, ""))
	r := Record[T]{ID: id, Revision: revision, Lease: LeaseID(lease)}
	var in stored
	err := json.Unmarshal(data, &in)
	if err == nil {
		err = json.Unmarshal(in.Value, &r.Value)
	}
	if err != nil {
		return Record[T]{}, fault.New(fault.Corrupt, "record %s/%s in %s is damaged, or of a newer version: correct or delete the key %s with etcdctl: %w", t.name, id, t.store.name(), key, err)
	}
	return r, nil
}

func (t Table[T]) checkID(id string) error {
	if id == "" || len(id) > maxID || !utf8.ValidString(id) || strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fault.New(fault.Invalid, "id %.40q in %s: an id has 1 to %d bytes of UTF-8 without control characters", id, t.name, maxID)
	}
	return nil
}

// Get reads a record, as it is now. NotFound: there is none.
func (t Table[T]) Get(ctx context.Context, id string) (Record[T], error) {
	if err := t.checkID(id); err != nil {
		return Record[T]{}, err
	}
	var got *clientv3.GetResponse
	err := t.store.read(ctx, "reading "+t.name+"/"+id, func(ctx context.Context) (err error) {
		got, err = t.store.client.Get(ctx, t.store.key(t.name, id))
		return err
	})
	if err != nil {
		return Record[T]{}, err
	}
	if len(got.Kvs) == 0 {
		return Record[T]{}, fault.New(fault.NotFound, "there is no %s/%s", t.name, id)
	}
	kv := got.Kvs[0]
	return t.decode(string(kv.Key), kv.Value, kv.ModRevision, kv.Lease)
}

// Cursor is a place in a list. The zero value is the beginning.
type Cursor struct {
	Revision int64  // of the store, which the list is of. What came after it is Watch's to say
	After    string // the id before the next page; empty: there is none, or the list has ended
}

// List reads a page: the records in order of their ids, at most limit of them (1 to 1,000). All pages are of one moment, that of the first. next.After is empty on the last page.
//
//	for at := (Cursor{}); ; {
//		page, next, err := nodes.List(ctx, at, 500)
//		...
//		if at = next; at.After == "" {
//			break
//		}
//	}
//
// Unavailable: among others, when an hour (embedded; external: its auto-compaction) has passed since the first page.
func (t Table[T]) List(ctx context.Context, at Cursor, limit int) (page []Record[T], next Cursor, err error) {
	if limit < 1 || limit > 1000 {
		return nil, Cursor{}, fault.New(fault.Invalid, "a page of %d records: 1 to 1,000 are possible", limit)
	}
	prefix := t.store.key(t.name, "")
	from := prefix
	if at.After != "" {
		from = prefix + at.After + "\x00"
	}
	opts := []clientv3.OpOption{clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(int64(limit))}
	if at.Revision != 0 {
		opts = append(opts, clientv3.WithRev(at.Revision))
	}
	var got *clientv3.GetResponse
	err = t.store.read(ctx, "listing "+t.name, func(ctx context.Context) (err error) {
		got, err = t.store.client.Get(ctx, from, opts...)
		return err
	})
	if err != nil {
		return nil, Cursor{}, err
	}
	if next.Revision = at.Revision; next.Revision == 0 {
		next.Revision = got.Header.Revision
	}
	page = make([]Record[T], len(got.Kvs))
	for i, kv := range got.Kvs {
		if page[i], err = t.decode(string(kv.Key), kv.Value, kv.ModRevision, kv.Lease); err != nil {
			return nil, Cursor{}, err
		}
	}
	if got.More && len(page) > 0 {
		next.After = page[len(page)-1].ID
	}
	return page, next, nil
}

// Put writes r.Value, if the record still has r.Revision (0: if there is none), attached to r.Lease, and returns r with its new revision. So a record that was read, changed and put keeps its lease.
//
// Errors: *Conflict (Exists): another writer was first. NotFound: r.Lease has ended. Invalid: the value is larger than MaxRecord, or no JSON. Exhausted: the store is full.
// Put again as it was after an error that leaves it open: a *Conflict, also where the first one happened.
func (t Table[T]) Put(ctx context.Context, r Record[T]) (Record[T], error) {
	revision, err := t.store.Txn(ctx, t.PutOp(r))
	if err != nil {
		return Record[T]{}, err
	}
	r.Revision = revision
	return r, nil
}

// Delete removes a record that has this revision (not 0).
//
// Errors: *Conflict (Exists): another writer was first, or removed it. Removed again after an error that leaves it open: a *Conflict with Have 0, also where the first one happened.
func (t Table[T]) Delete(ctx context.Context, id string, revision int64) error {
	_, err := t.store.Txn(ctx, t.DeleteOp(id, revision))
	return err
}
