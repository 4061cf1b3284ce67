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
	"syscall"
	"time"
	"unicode"

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

// mostJobs that are not over.
const mostJobs = 10_000

// likeSlash looks like the slash behind the name of a project.
const likeSlash = "\u2044\u2215\u29f8\uff0f\u2571\u2afd\u0337\u0338"

var (
	nameOf = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	envOf  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)
)

func jobOf(d place.DemandID) string { return jobs.Of(d) }

// checkJob refuses what cannot be a job of b.
func (h *Head) checkJob(j *pb.Job, b by) error {
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
		for k := range r.GetNamed() {
			size += len(k) + 16
		}
	}
	nodes := j.GetNodes() // of both kinds
	if nodes >= 0 && nodes <= mostMembers && data.GetNodes() >= 0 && data.GetNodes() <= mostMembers {
		nodes = members(j)
	}
	needs := checkNeeds(j)
	switch {
	case len(j.GetArgv()) == 0 || j.GetArgv()[0] == "":
		return fault.New(fault.Invalid, "a job has a program to run")
	case j.GetSubmission() != "" && !nameOf.MatchString(j.GetSubmission()):
		return fault.New(fault.Invalid, "an id of submission has letters, digits, dots, hyphens and underscores, up to 100: not %q", j.GetSubmission())
	case idOf.MatchString(j.GetSubmission()):
		return fault.New(fault.Invalid, "a submission %q would be taken for the job or node of that id: choose another id", j.GetSubmission())
	case len(j.GetName()) > 200 || strings.ContainsFunc(j.GetName(), func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune(likeSlash, r) }):
		return fault.New(fault.Invalid, "the name of a job has up to 200 bytes of what prints, without control characters, and nothing that looks like a slash and is none: not %.200q", j.GetName())
	case size > 40<<10:
		return fault.New(fault.Invalid, "arguments, environment, labels and resources of a job take %d bytes; 40 KiB is the most: put large things into the working directory", size)
	case needs != nil:
		return needs
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
		if !h.packs.HasOf(b.packs()[0], hash) {
			return fault.New(fault.NotFound, "the head does not have pack %s of you: send it first", hash)
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
	b := byPeer(rpc.PeerOf(ctx))
	if err := h.checkJob(q, b); err != nil {
		return nil, err
	}
	sum, err := h.digest(q)
	if err != nil {
		return nil, err
	}
	reply := &pb.SubmitReply{}
	err = h.do(ctx, func() error {
		stored := proto.CloneOf(q)
		stored.Secrets = nil
		var err error
		if b.Project, stored.Name, err = h.projectOf(rpc.PeerOf(ctx), q.GetName()); err != nil {
			return err
		}
		submission := submissionID(b.Project, q.GetSubmission())
		if submission != "" {
			was, err := h.t.submissions.Get(ctx, submission)
			switch {
			case fault.CodeOf(err) == fault.NotFound:
			case err != nil:
				return err
			case !was.Value.By.changes(rpc.PeerOf(ctx)):
				return fault.New(fault.Exists, "%s is the id of somebody else's submission: choose another id", q.GetSubmission())
			case was.Value.Digest != sum:
				return fault.New(fault.Exists, "%s was submitted before, as job %s, with other content: choose another id", q.GetSubmission(), was.Value.Job)
			default:
				reply.Job, reply.Existed = was.Value.Job, true
				return nil
			}
		}
		if err := h.mayWait(b); err != nil {
			return err
		}
		if err := h.mayHurry(b, time.Now()); err != nil {
			return err
		}
		id, err := h.jobID(ctx)
		if err != nil {
			return err
		}
		r := records.Record[jobRecord]{ID: id, Value: jobRecord{Job: stored, Secrets: slices.Sorted(maps.Keys(q.GetSecrets())), By: b,
			Record: jobs.Record{State: jobs.Queued}, Submitted: time.Now().UTC()}}
		if err := h.holdPack(q); err != nil { // it was there, but for others came since
			return err
		}
		if err := h.writeSecrets(id, q.GetSecrets()); err != nil {
			h.releasePack(q)
			return err
		}
		ops := []records.Op{h.t.jobs.PutOp(r)}
		if submission != "" {
			ops = append(ops, h.t.submissions.PutOp(records.Record[submissionRecord]{ID: submission, Value: submissionRecord{Job: id, Digest: sum, By: b}}))
		}
		if err := h.commitAudited(h.noting(ctx, "submit", what{Kind: "job", ID: id, Detail: stored.GetName()}), ops...); err != nil {
			h.dropSecrets(id)
			h.releasePack(q)
			return err
		}
		if r, err = read(h, h.t.jobs, id); err != nil {
			return err // the head ends: the job is on record, and found by the next one
		}
		h.jobs[id] = &r
		reply.Job = id
		if hash := packs.Hash(q.GetPack()); hash != "" {
			h.packs.Share(hash, b.packs()...)
		}
		return h.admit(&r)
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
	s := &pb.Start{Process: a.Process.String(), Argv: r.Value.Job.GetArgv(), Env: env, Secrets: r.Value.Secrets, Pack: r.Value.Job.GetPack(), Limits: r.Value.resources(a.Process.Member), Devices: a.Devices,
		LogBytes: h.logsOf(r.Value.By)}
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
		p := rpc.PeerOf(ctx)
		waits := map[string]string{}
		for _, w := range h.core.Waiting() {
			waits[jobOf(w.Demand)] = w.Why
		}
		if len(h.held) > 0 {
			of := h.counted()
			for id := range h.held {
				waits[id] = h.waitsFor(h.jobs[id].Value.By, of)
			}
		}
		ids := q.GetJobs()
		if len(ids) == 0 {
			ids = sortedIDs(h.jobs)
			slices.Reverse(ids)
			if q.GetBefore() != "" {
				at, _ := slices.BinarySearchFunc(ids, q.GetBefore(), func(a, b string) int { return -compareIDs(a, b) })
				ids = slices.DeleteFunc(ids[at:], func(id string) bool { return id == q.GetBefore() })
			}
			ids = slices.DeleteFunc(ids, func(id string) bool { return !sees(p, h.jobs[id].Value.By.Project) })
		}
		size := 0
		for _, name := range ids {
			var s *pb.JobState
			if r, err := h.jobFor(p, name); err == nil {
				s = h.jobState(r, waits[r.ID])
			} else if was := h.pastFor(p, name); was != nil {
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
	j.Pack = "" // it is for who has it
	s := &pb.JobState{Owner: v.By.Owner, Token: v.By.Token, Project: v.By.Project, Id: r.ID, Job: j, State: string(v.Record.State), Why: v.Record.Why, Attempts: v.Record.Attempt, SubmittedUnixNanos: nanos(v.Submitted), StartedUnixNanos: nanos(v.Started),
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
	h, p := c.h, rpc.PeerOf(ctx)
	return &pb.Empty{}, h.do(ctx, func() error {
		r, err := h.jobFor(p, q.GetJob())
		if err != nil {
			if was := h.pastFor(p, q.GetJob()); was != nil {
				return was.Value.By.mayChange(p, was.Value.Job)
			}
			return err
		}
		if err := r.Value.By.mayChange(p, r.ID); err != nil || r.Value.Record.State.Over() {
			return err
		}
		if err := h.audit(ctx, "stop", what{Kind: "job", ID: r.ID, Detail: r.Value.Job.GetName()}, nil); err != nil {
			return err
		}
		if h.held[r.ID] {
			return h.stopHeld(r.ID)
		}
		return h.step(core.Event{Kind: core.Stop, Job: r.ID, Grace: graceOf(q.GetGraceMs())})
	})
}
