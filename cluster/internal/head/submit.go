package head

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-data/penstock/cluster/internal/core"
	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/packs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/place"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mask"
)

const (
	// mostJobs that are not over.
	mostJobs = 10_000
	// mostGPUs of a process.
	mostGPUs = 1024
)

var (
	nameOf = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	envOf  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)
)

func jobOf(d place.DemandID) string { return jobs.Of(d) }

// checkJob refuses what cannot be a job.
func (h *Head) checkJob(j *pb.Job) error {
	size := 0
	for i, a := range j.GetArgv() {
		if strings.Contains(a, "\x00") {
			return fault.New(fault.Invalid, "argument %d of a job has a zero byte, which no program can be given", i)
		}
		size += len(a) + 8
	}
	for _, m := range []map[string]string{j.GetEnv(), j.GetSecrets()} {
		for k, v := range m {
			if !envOf.MatchString(k) {
				return fault.New(fault.Invalid, "%q is no name of a variable", k)
			}
			if strings.Contains(v, "\x00") {
				return fault.New(fault.Invalid, "variable %s of a job has a zero byte, which no program can be given", k)
			}
			size += len(k) + len(v) + 8
		}
	}
	stored := proto.CloneOf(j)
	stored.Secrets = nil
	text, _ := json.Marshal([]any{stored, slices.Sorted(maps.Keys(j.GetSecrets()))}) // texts and numbers; some characters take six bytes there
	size = max(size, len(text))
	r, data := j.GetResources(), j.GetData()
	for _, labels := range []map[string]string{j.GetLabels(), data.GetLabels()} {
		for k, v := range labels {
			size += len(k) + len(v) + 8
		}
	}
	for _, r := range []*pb.Resources{r, data.GetResources()} {
		for k, v := range r.GetNamed() {
			if v < 0 {
				return fault.New(fault.Invalid, "a job cannot need %d %s", v, k)
			}
			size += len(k) + 16
		}
		if r.GetMilliCpus() < 0 || r.GetGpus() < 0 || r.GetMemory() < 0 {
			return fault.New(fault.Invalid, "a job cannot need less than nothing: %v", r)
		}
		if r.GetGpus() > mostGPUs {
			return fault.New(fault.Invalid, "a job cannot need %d GPUs on a node: %d are the most", r.GetGpus(), mostGPUs)
		}
	}
	nodes := j.GetNodes() // of both kinds
	if nodes >= 0 && nodes <= mostMembers && data.GetNodes() >= 0 && data.GetNodes() <= mostMembers {
		nodes = members(j)
	}
	switch {
	case len(j.GetArgv()) == 0 || j.GetArgv()[0] == "":
		return fault.New(fault.Invalid, "a job has a program to run")
	case j.GetSubmission() != "" && !nameOf.MatchString(j.GetSubmission()):
		return fault.New(fault.Invalid, "an id of submission has letters, digits, dots, hyphens and underscores, up to 100: not %q", j.GetSubmission())
	case idOf.MatchString(j.GetSubmission()):
		return fault.New(fault.Invalid, "a submission %q would be taken for the job or node of that id: choose another id", j.GetSubmission())
	case len(j.GetName()) > 200 || odd(j.GetName()):
		return fault.New(fault.Invalid, "the name of a job has up to 200 bytes without control characters")
	case size > 40<<10:
		return fault.New(fault.Invalid, "arguments, environment, labels and resources of a job take %d bytes; 40 KiB is the most: put large things into the working directory", size)
	case j.GetNodes() < 0 || data.GetNodes() < 0 || nodes > mostMembers || data.GetNodes() > mostMembers:
		return fault.New(fault.Invalid, "a job on %d nodes and %d data nodes: it has 1 to %d together", cmp.Or(j.GetNodes(), 1), data.GetNodes(), mostMembers)
	case data.GetNodes() == 0 && data != nil:
		return fault.New(fault.Invalid, "what data nodes need and no number of them")
	case nodes > 1 && h.cfg.Listen == "":
		return fault.New(fault.Invalid, "a job on %d nodes, in a cluster that is one machine: nothing listens on the network; start the head with --listen, and join other machines", nodes)
	case int64(size)+64*nodes+48*max(r.GetGpus()*(nodes-data.GetNodes()), 0)+48*data.GetResources().GetGpus()*data.GetNodes() > 48<<10:
		return fault.New(fault.Invalid, "arguments, environment, labels and resources of a job (%d bytes) on %d nodes with %d GPUs each are more than a record holds: put large things into the working directory, or take fewer nodes", size, nodes, r.GetGpus())
	}
	if j.GetPack() != "" {
		hash, err := packs.ParseHash(j.GetPack())
		if err != nil {
			return err
		}
		if !h.packs.Has(hash) {
			return fault.New(fault.NotFound, "the head does not have pack %s: send it first", hash)
		}
	}
	return nil
}

// digest tells one submission from another. Its key is the cluster's, in the head's folder: who has the records alone cannot try what secrets a job may have had.
func (h *Head) digest(j *pb.Job) (string, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(j)
	if err != nil {
		return "", err
	}
	key, err := h.ca.Secret("digests of submissions")
	if err != nil {
		return "", err
	}
	sum := hmac.New(sha256.New, key)
	sum.Write(b)
	return hexOf(sum.Sum(nil)), nil
}

// Submit makes a job; again with the same id and content it is the same job.
func (c controlServer) Submit(ctx context.Context, q *pb.Job) (*pb.SubmitReply, error) {
	h := c.h
	if err := h.checkJob(q); err != nil {
		return nil, err
	}
	sum, err := h.digest(q)
	if err != nil {
		return nil, err
	}
	reply := &pb.SubmitReply{}
	err = h.do(ctx, func() error {
		if q.GetSubmission() != "" {
			was, err := h.t.submissions.Get(ctx, q.GetSubmission())
			switch {
			case fault.CodeOf(err) == fault.NotFound:
			case err != nil:
				return err
			case was.Value.Digest != sum:
				return fault.New(fault.Exists, "%s was submitted before, as job %s, with other content: choose another id", q.GetSubmission(), was.Value.Job)
			default:
				reply.Job, reply.Existed = was.Value.Job, true
				return nil
			}
		}
		alive := 0
		for _, r := range h.jobs {
			if !r.Value.Record.State.Over() {
				alive++
			}
		}
		if alive >= mostJobs {
			return fault.New(fault.Exhausted, "%d jobs wait or run, the most that a cluster has", alive)
		}
		id, err := h.jobID(ctx)
		if err != nil {
			return err
		}
		stored := proto.CloneOf(q)
		stored.Secrets = nil
		r := records.Record[jobRecord]{ID: id, Value: jobRecord{Job: stored, Secrets: slices.Sorted(maps.Keys(q.GetSecrets())), Submitter: rpc.PeerOf(ctx).String(),
			Record: jobs.Record{State: jobs.Queued}, Submitted: time.Now().UTC()}}
		if err := h.holdPack(q); err != nil { // it was there, but for others came since
			return err
		}
		if err := h.writeSecrets(id, q.GetSecrets()); err != nil {
			h.releasePack(q)
			return err
		}
		ops := []records.Op{h.t.jobs.PutOp(r)}
		if q.GetSubmission() != "" {
			ops = append(ops, h.t.submissions.PutOp(records.Record[submissionRecord]{ID: q.GetSubmission(), Value: submissionRecord{Job: id, Digest: sum}}))
		}
		if err := h.commit(ops...); err != nil {
			h.dropSecrets(id)
			h.releasePack(q)
			return err
		}
		if r, err = read(h, h.t.jobs, id); err != nil {
			return err // the head ends: the job is on record, and found by the next one
		}
		h.jobs[id] = &r
		reply.Job = id
		return h.step(core.Event{Kind: core.Submit, Spec: r.Value.spec(id)})
	})
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// start is what a node is told to start. A job whose secrets are lost is not started without them.
func (h *Head) start(a core.Action) (*pb.Start, error) {
	r := h.jobs[a.Process.Job]
	secrets, err := h.secretsOf(r)
	if err != nil {
		return nil, err
	}
	env := maps.Clone(r.Value.Job.GetEnv())
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, secrets)
	s := &pb.Start{Process: a.Process.String(), Argv: r.Value.Job.GetArgv(), Env: env, Secrets: r.Value.Secrets, Pack: r.Value.Job.GetPack(), Limits: r.Value.resources(a.Process.Member), Devices: a.Devices}
	if n := members(r.Value.Job); n > 1 {
		s.Members, s.Data, s.Host = n, r.Value.Job.GetData().GetNodes(), h.host(a.Node, r.Value.Record.Placed)
	}
	return s, nil
}

func (h *Head) secretFile(job string) string { return filepath.Join(h.cfg.Dir, "secrets", job) }

// writeSecrets keeps a job's secrets in a file of mode 0600, for a head that starts again.
func (h *Head) writeSecrets(job string, secrets map[string]string) error {
	if len(secrets) == 0 {
		return nil
	}
	b, err := json.Marshal(secrets)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(h.secretFile(job)), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(h.secretFile(job), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.Write(b)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		h.dropSecrets(job)
		code := fault.Unavailable
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			code = fault.Exhausted
		}
		return fault.New(code, "a job's secrets are kept in a file of the head: %w", err)
	}
	h.secrets[job] = maps.Clone(secrets)
	return nil
}

// secretsOf are those of a job: all that it was submitted with, or an error.
func (h *Head) secretsOf(r *records.Record[jobRecord]) (map[string]string, error) {
	if m := h.secrets[r.ID]; m != nil || len(r.Value.Secrets) == 0 {
		return m, nil
	}
	b, err := os.ReadFile(h.secretFile(r.ID))
	var m map[string]string
	if err == nil && (json.Unmarshal(b, &m) != nil || !slices.Equal(slices.Sorted(maps.Keys(m)), r.Value.Secrets)) { // what is wrong with it may be part of a secret
		err = fmt.Errorf("%s is damaged", h.secretFile(r.ID))
	}
	if err != nil {
		return nil, fault.New(fault.Corrupt, "the head has lost the job's secrets (%w), and does not start it without them: submit it again, with another --id where it has one", err)
	}
	h.secrets[r.ID] = m
	return m, nil
}

// masked is how a process ended, without its job's secrets: it is written down, and shown. Its node does that too, before it cuts anything.
func (h *Head) masked(end core.End) core.End {
	secrets := slices.Collect(maps.Values(h.secrets[end.Process.Job]))
	end.Text = mask.Text(end.Text, secrets)
	for i, s := range end.At {
		end.At[i] = mask.Text(s, secrets)
	}
	return end
}

func (h *Head) dropSecrets(job string) {
	delete(h.secrets, job)
	if err := os.Remove(h.secretFile(job)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.log.Warn("a job's secrets stay on disk", "job", job, "err", err)
	}
}

// Jobs lists jobs, the newest first; where not all are asked for by id, as many as a message carries.
func (c controlServer) Jobs(ctx context.Context, q *pb.JobsRequest) (*pb.JobList, error) {
	h := c.h
	list := &pb.JobList{}
	err := h.do(ctx, func() error {
		waits := map[string]string{}
		for _, w := range h.core.Waiting() {
			waits[jobOf(w.Demand)] = w.Why
		}
		ids := q.GetJobs()
		if len(ids) == 0 {
			ids = sortedIDs(h.jobs)
			slices.Reverse(ids)
			if q.GetBefore() != "" {
				at, _ := slices.BinarySearchFunc(ids, q.GetBefore(), func(a, b string) int { return -compareIDs(a, b) })
				ids = slices.DeleteFunc(ids[at:], func(id string) bool { return id == q.GetBefore() })
			}
		}
		size := 0
		for _, name := range ids {
			var s *pb.JobState
			if r, err := h.jobNamed(name); err == nil {
				s = h.jobState(r, waits[r.ID])
			} else if was := h.past.named(name); was != nil {
				s = was.Value.state(was.ID)
			} else {
				return err
			}
			if size += proto.Size(s) + 8; size > rpc.DefaultLimits.Message && len(q.GetJobs()) == 0 {
				list.More = true
				break
			}
			list.Jobs = append(list.Jobs, s)
		}
		return nil
	})
	return list, err
}

// jobNamed finds a job by its id, or that of its submission.
func (h *Head) jobNamed(name string) (*records.Record[jobRecord], error) {
	if r := h.jobs[name]; r != nil {
		return r, nil
	}
	for _, r := range h.jobs {
		if s := r.Value.Job.GetSubmission(); s != "" && s == name {
			return r, nil
		}
	}
	if was := h.past.named(name); was != nil {
		return nil, fault.New(fault.NotFound, "job %s (%s) has %s, and only that is remembered of it (start --keep-jobs)", was.Value.Job, was.ID, was.Value.Past.State)
	}
	return nil, fault.New(fault.NotFound, "no job %s (see penstock jobs)", name)
}

func (h *Head) jobState(r *records.Record[jobRecord], waits string) *pb.JobState {
	v := r.Value
	j := proto.CloneOf(v.Job)
	j.Resources = v.resources(0)
	if j.Data != nil {
		j.Data.Resources = v.resources(len(v.spec("").Members) - 1)
	}
	for k := range j.Env { // values may be anything
		j.Env[k] = ""
	}
	s := &pb.JobState{Id: r.ID, Job: j, State: string(v.Record.State), Why: v.Record.Why, Attempts: v.Record.Attempt, SubmittedUnixNanos: nanos(v.Submitted), StartedUnixNanos: nanos(v.Started),
		EndedUnixNanos: nanos(v.Ended), Code: v.Record.Code, Failures: map[string]int64{}}
	for c, n := range v.Record.Failures {
		s.Failures[string(c)] = n
	}
	if n := len(v.Ran); n > 0 && (v.Record.State.Over() || len(v.Record.Placed) > 0) {
		s.Nodes = v.Ran[n-1].Nodes
	}
	if waits != "" {
		s.Why = waits
		if v.Record.Why != "" {
			last, _, _ := strings.Cut(v.Record.Why, "\n")
			s.Why = fmt.Sprintf("%s (before: %s)", waits, last)
		}
	}
	return s
}

// StopJob ends a job. One that is over stays as it is.
func (c controlServer) StopJob(ctx context.Context, q *pb.StopJobRequest) (*pb.Empty, error) {
	return &pb.Empty{}, c.h.do(ctx, func() error {
		r, err := c.h.jobNamed(q.GetJob())
		if err != nil {
			if c.h.past.named(q.GetJob()) != nil {
				return nil
			}
			return err
		}
		return c.h.step(core.Event{Kind: core.Stop, Job: r.ID, Grace: graceOf(q.GetGraceMs())})
	})
}

const (
	// readWait is how long a node waits for more of a log before it says that there is none.
	readWait = 10 * time.Second
	// readMost is how long the head waits for a node.
	readMost = 15 * time.Second
)

// Logs gives what a job printed, attempt after attempt; with follow until it is over. Of one on several nodes, with follow, as it comes; without, node after node.
func (c controlServer) Logs(q *pb.LogsRequest, stream grpc.ServerStreamingServer[pb.LogChunk]) error {
	h := c.h
	ctx := stream.Context()
	tail := q.GetTail()
	var nodes int64
	var sending sync.Mutex
	send := func(c *pb.LogChunk) error {
		sending.Lock()
		defer sending.Unlock()
		c.Nodes = nodes
		return stream.Send(c)
	}
	for given := int64(0); ; { // attempts
		var a ran
		var id string
		var over bool
		var changed chan struct{}
		if err := h.do(ctx, func() error {
			r, err := h.jobNamed(q.GetJob())
			if err != nil {
				return err
			}
			id, over, changed, a = r.ID, r.Value.Record.State.Over(), h.changed, ran{}
			nodes = members(r.Value.Job)
			for i, x := range r.Value.Ran {
				if x.Attempt > given && (tail == 0 || i == len(r.Value.Ran)-1) {
					a = x
					break
				}
			}
			return nil
		}); err != nil {
			return err
		}
		if a.Attempt == 0 {
			if over || !q.GetFollow() {
				return nil
			}
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return fault.WithCode(fault.Canceled, context.Cause(ctx))
			case <-h.ctx.Done():
				return h.ends("")
			}
		}
		given = a.Attempt
		all, cancel := context.WithCancelCause(ctx)
		var reading sync.WaitGroup
		for i, node := range a.Nodes {
			read := func() {
				if err := h.logOf(all, jobs.Process{Job: id, Attempt: a.Attempt, Member: i, Life: a.Life}, node, -tail, q.GetFollow(), send); err != nil {
					cancel(err)
				}
			}
			if q.GetFollow() {
				reading.Go(read)
			} else if all.Err() == nil {
				read()
			}
		}
		reading.Wait()
		err := context.Cause(all)
		cancel(nil)
		if err != nil {
			return err
		}
		tail = 0
	}
}

// logOf gives the log of one process; with follow, of one that runs on a node that is away for now, when it is back.
func (h *Head) logOf(ctx context.Context, p jobs.Process, node string, offset int64, follow bool, send func(*pb.LogChunk) error) error {
	for {
		answer := make(chan *pb.LogChunk, 1)
		var request uint64
		var gone, runs bool
		var s *session
		var changed chan struct{}
		if err := h.do(ctx, func() error {
			changed = h.changed
			if r := h.jobs[p.Job]; r != nil {
				runs = r.Value.Record.Attempt == p.Attempt && len(r.Value.Record.Placed) > 0
			}
			s = h.sessions[node]
			if gone = s == nil; !gone {
				h.read++
				request = h.read
				h.reads[request] = answer
				h.tell(node, &pb.FromHead{Say: &pb.FromHead_ReadLog{ReadLog: &pb.ReadLog{Request: request, Process: p.String(), Offset: offset, Follow: follow, WaitMs: readWait.Milliseconds()}}})
			}
			return nil
		}); err != nil {
			return err
		}
		if gone && runs && follow {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return fault.WithCode(fault.Canceled, context.Cause(ctx))
			case <-h.ctx.Done():
				return h.ends("")
			}
		}
		if gone {
			return send(&pb.LogChunk{Process: p.Short(), Error: fmt.Sprintf("the log of attempt %d is on node %s, which is not attached", p.Attempt, node)})
		}
		var c *pb.LogChunk
		timer := time.NewTimer(readMost)
		select {
		case c = <-answer:
		case <-s.done: // it may come back
			timer.Stop()
			if err := h.do(ctx, func() error {
				delete(h.reads, request)
				if changed = nil; h.sessions[node] == s { // the end of the session is not dealt with yet
					changed = h.changed
				}
				return nil
			}); err != nil {
				return err
			}
			if changed != nil {
				select {
				case <-changed:
				case <-time.After(time.Second):
				case <-ctx.Done():
					return fault.WithCode(fault.Canceled, context.Cause(ctx))
				}
			}
			continue
		case <-timer.C:
			c = &pb.LogChunk{Error: fmt.Sprintf("node %s does not say what the log of attempt %d holds", node, p.Attempt), End: true}
		case <-ctx.Done():
		}
		timer.Stop()
		if c == nil {
			_ = h.do(h.ctx, func() error { delete(h.reads, request); return nil })
			return fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		c.Process = p.Short()
		if len(c.GetData()) > 0 || c.GetError() != "" || c.GetEnd() {
			if err := send(c); err != nil {
				return err
			}
		}
		if c.GetEnd() || len(c.GetData()) == 0 && (c.GetError() != "" || !follow) {
			return nil
		}
		offset = c.GetOffset() + int64(len(c.GetData()))
	}
}
