package records

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/penstock-data/penstock/internal/fault"
)

// Op is a part of a transaction. PutOp, DeleteOp and CheckOp of a table make it.
type Op struct {
	kind      opKind
	table, id string
	want      int64
	value     []byte // JSON
	lease     LeaseID
	err       error // the operation is not possible: the transaction's error
}

type opKind uint8

const (
	opCheck opKind = iota
	opPut
	opDelete
)

// PutOp is Put as a part of a transaction.
func (t Table[T]) PutOp(r Record[T]) Op {
	op := Op{kind: opPut, table: t.name, id: r.ID, want: r.Revision, lease: r.Lease, err: t.checkID(r.ID)}
	if op.err != nil {
		return op
	}
	var err error
	if op.value, err = json.Marshal(r.Value); err != nil {
		op.err = fault.New(fault.Invalid, "%s/%s cannot be written as JSON: %w", t.name, r.ID, err)
	} else if len(op.value) > MaxRecord {
		op.err = fault.New(fault.Invalid, "%s/%s has %d bytes as JSON: a record has room for %d; make what it is about smaller (arguments, environment, labels), or put it into a file", t.name, r.ID, len(op.value), MaxRecord)
	}
	return op
}

// DeleteOp is Delete as a part of a transaction.
func (t Table[T]) DeleteOp(id string, revision int64) Op {
	op := Op{kind: opDelete, table: t.name, id: id, want: revision, err: t.checkID(id)}
	if op.err == nil && revision <= 0 {
		op.err = fault.New(fault.Invalid, "%s/%s is to be deleted without a revision: read it first", t.name, id)
	}
	return op
}

// CheckOp makes a transaction depend on a record that it does not write: it must have this revision (0: there must be none).
func (t Table[T]) CheckOp(id string, revision int64) Op {
	return Op{table: t.name, id: id, want: revision, err: t.checkID(id)}
}

// Txn does all of ops at once, or, if one of them is not possible, none. At most one may be of a record, MaxOps in all, with 1 MiB. What it wrote has the revision that it returns.
//
// Errors: those of Put and Delete. A *Conflict is of the first of ops that has one. Unavailable, besides: another head has the claim (see Claim), and this did not happen, unless it was done, and the answer lost, before that. Done again as it was, after an error that leaves it open: a *Conflict, also where the first one happened.
//
// Inside the call, a lost answer makes it ask again, and find its own write by its id: see the package. Where another writer has changed all records of it since, it cannot, and says *Conflict; then too
// reading again and deciding anew is right. A transaction that only deletes has no id: after a lost answer, that nothing is there of what was to be deleted is taken for its work.
func (s *Store) Txn(ctx context.Context, ops ...Op) (revision int64, err error) {
	what, err := checkOps(ops)
	if err != nil {
		return 0, err
	}
	fence, fenced := s.fence()
	if fenced {
		ops = slices.Insert(slices.Clone(ops), 0, fence)
	}
	var (
		write = s.write()
		ifs   = make([]clientv3.Cmp, len(ops))
		thens []clientv3.Op
		elses = make([]clientv3.Op, len(ops))
	)
	for i, op := range ops {
		key := s.key(op.table, op.id)
		ifs[i] = clientv3.Compare(clientv3.ModRevision(key), "=", op.want)
		elses[i] = clientv3.OpGet(key)
		switch op.kind {
		case opPut:
			value, err := json.Marshal(stored{write, op.value})
			if err != nil {
				return 0, fault.New(fault.Internal, "%s/%s: %w", op.table, op.id, err)
			}
			thens = append(thens, clientv3.OpPut(key, string(value), clientv3.WithLease(clientv3.LeaseID(op.lease))))
		case opDelete:
			thens = append(thens, clientv3.OpDelete(key))
		}
	}
	err = s.repeat(ctx, what, " (it may have happened: read it again)", func(ctx context.Context, doubt bool) error {
		r, err := s.client.Txn(ctx).If(ifs...).Then(thens...).Else(elses...).Commit()
		if errors.Is(err, rpctypes.ErrNoSpace) { // etcd says so too of writes that it has done, when they were the first that did not fit
			now, readErr := s.client.Txn(ctx).Then(elses...).Commit()
			if readErr != nil {
				return readErr
			}
			if _, mine := judge(ops, now, write); mine != 0 {
				revision, err = mine, nil
			}
			return err
		}
		if err != nil {
			return err
		}
		if revision = r.Header.Revision; r.Succeeded {
			return nil
		}
		conflict, mine := judge(ops, r, write)
		if doubt && mine != 0 {
			revision = mine
			return nil
		}
		if fenced && conflict != nil && conflict.Table == fence.table && conflict.ID == fence.id {
			return s.lose(s.holderIn(r))
		}
		if conflict == nil { // the comparison and the reads are of one moment
			return fault.New(fault.Internal, "%s: etcd refused it, though all revisions are as they should be", what)
		}
		return fault.WithCode(fault.Exists, conflict)
	})
	if err != nil {
		return 0, err
	}
	return revision, nil
}

// holderIn is who has the claim, of the answer to a transaction that began with the check of it.
func (s *Store) holderIn(r *clientv3.TxnResponse) Holder {
	if kvs := r.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
		if h, err := In[Holder](s, claimTable).decode(string(kvs[0].Key), kvs[0].Value, kvs[0].ModRevision, 0); err == nil {
			return h.Value
		}
	}
	return Holder{}
}

// judge says what a transaction that was refused met: the first conflict, and the revision of this very write, if it happened in an earlier attempt (0: it did not, as far as can be seen).
func judge(ops []Op, r *clientv3.TxnResponse, write string) (conflict *Conflict, mine int64) {
	puts, gone, deletes := 0, 0, 0
	for i, op := range ops {
		var kv *mvccpb.KeyValue
		if kvs := r.Responses[i].GetResponseRange().GetKvs(); len(kvs) > 0 {
			kv = kvs[0]
		}
		have := kv.GetModRevision()
		if have != op.want && conflict == nil {
			conflict = &Conflict{op.table, op.id, op.want, have}
		}
		switch op.kind {
		case opPut:
			puts++
			var in stored
			if kv != nil && json.Unmarshal(kv.GetValue(), &in) == nil && in.Write == write {
				mine = have
			}
		case opDelete:
			deletes++
			if kv == nil {
				gone++
			}
		}
	}
	if puts == 0 && deletes > 0 && gone == deletes {
		mine = r.Header.Revision
	}
	return conflict, mine
}

// checkOps says what a transaction is about, for errors.
func checkOps(ops []Op) (what string, err error) {
	if len(ops) == 0 || len(ops) > MaxOps {
		return "", fault.New(fault.Invalid, "a transaction has 1 to %d operations, not %d", MaxOps, len(ops))
	}
	var (
		bytes int
		seen  = make(map[string]bool, len(ops))
		text  strings.Builder
	)
	for i, op := range ops {
		if op.err != nil {
			return "", op.err
		}
		name := op.table + "/" + op.id
		if seen[name] {
			return "", fault.New(fault.Invalid, "a transaction has %s twice", name)
		}
		seen[name] = true
		if bytes += len(op.value) + 2*len(name) + 200; bytes > maxTxn {
			return "", fault.New(fault.Invalid, "a transaction of more than %d bytes: make it of fewer records", maxTxn)
		}
		switch {
		case i == 3:
			fmt.Fprintf(&text, " and %d more", len(ops)-3)
		case i < 3:
			if i > 0 {
				text.WriteString(", ")
			}
			text.WriteString([...]string{"checking ", "writing ", "deleting "}[op.kind] + name)
		}
	}
	return text.String(), nil
}

// Next gives the next number of a sequence: 1, 2, 3 and so on. A number is never given twice, by any store; one that is given to nobody, as an answer was lost, stays away.
func (s *Store) Next(ctx context.Context, name string) (int64, error) {
	seq := In[int64](s, "seq")
	for {
		r, err := seq.Get(ctx, name)
		if fault.CodeOf(err) == fault.NotFound {
			r, err = Record[int64]{ID: name}, nil
		}
		if err != nil {
			return 0, err
		}
		r.Value++
		if r, err = seq.Put(ctx, r); err == nil {
			return r.Value, nil
		}
		if _, ok := errors.AsType[*Conflict](err); !ok {
			return 0, err
		}
	}
}
