package cluster

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pb"
)

// AuditEntry is a thing that was done, or refused: who did it, from where, on what, with which
// result.
type AuditEntry struct {
	At      time.Time
	Who     string // token, user, node, newcomer or head; others: callers that were too many to tell apart
	ID      string // of the token or node, or the number of the user; of a newcomer the token that it joined with
	Owner   string // of the token
	Project string // likewise
	From    string // address; "": this machine
	Action  string // submit, stop, drain, undrain, shutdown, join, create-token, revoke-token, set-quota, remove-quota; of other calls that were denied their name
	Kind    string // of what it was done to: job, node, token, owner, project, cluster
	Object  string // its id or name
	Detail  string // what else names it
	Result  string // ok, or the code of the error
	Count   int64  // so often it was refused, where it was
}

// AuditQuery is which entries are asked for: those that are all of what is given.
type AuditQuery struct {
	Since time.Time
	Job   string // about it
	Token string // by it, or about it
}

// Audit calls f with the entries, the oldest first.
func (c *Client) Audit(ctx context.Context, q AuditQuery, f func(*AuditEntry) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &pb.AuditRequest{Job: q.Job, Token: q.Token}
	if !q.Since.IsZero() {
		r.SinceUnixNanos = q.Since.UnixNano()
	}
	stream, err := c.c.Audit(ctx, r)
	if err != nil {
		return err
	}
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f(&AuditEntry{timeOf(e.GetUnixNanos()), e.GetWho(), e.GetId(), e.GetOwner(), e.GetProject(), e.GetFrom(), e.GetAction(), e.GetKind(), e.GetObject(), e.GetDetail(), e.GetResult(), e.GetCount()}); err != nil {
			return err
		}
	}
}

// What quotas are of.
const (
	OfOwner   = "owner"   // of tokens
	OfProject = "project" // whose jobs are called NAME/...
)

// Quota is what an owner or a project may have: -1 is no limit, nil the default, or as it was where
// a quota is set.
type Quota struct {
	Kind string // OfOwner or OfProject
	Name string

	JobsWaiting *int64
	JobsRunning *int64 // or considered for nodes
	PackBytes   *int64 // of working directories at the head
	LogBytes    *int64 // of each process

	Waiting, Running, Packed int64 // used
}

// SetQuota makes a project, or says what an owner or a project may have.
func (c *Client) SetQuota(ctx context.Context, q Quota) error {
	_, err := c.c.SetQuota(ctx, &pb.Quota{Name: &pb.QuotaName{Kind: q.Kind, Name: q.Name}, JobsWaiting: q.JobsWaiting, JobsRunning: q.JobsRunning, PackBytes: q.PackBytes, LogBytes: q.LogBytes})
	return err
}

// Quotas lists the projects, and the owners whose quotas are not the default.
func (c *Client) Quotas(ctx context.Context) ([]Quota, error) {
	r, err := c.c.ListQuotas(ctx, &pb.Empty{})
	if err != nil {
		return nil, err
	}
	var all []Quota
	for _, q := range r.GetQuotas() {
		all = append(all, Quota{q.GetName().GetKind(), q.GetName().GetName(), q.JobsWaiting, q.JobsRunning, q.PackBytes, q.LogBytes, q.GetWaiting(), q.GetRunning(), q.GetPacked()})
	}
	return all, nil
}

// RemoveQuota ends a project, which must have no jobs that are not over and no tokens, or has the
// defaults be an owner's quotas.
func (c *Client) RemoveQuota(ctx context.Context, kind, name string) error {
	_, err := c.c.RemoveQuota(ctx, &pb.QuotaName{Kind: kind, Name: name})
	return err
}
