package cluster

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/head"
	"github.com/penstock-data/penstock/cluster/internal/packs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

// Client asks a head. Safe for concurrent use. Close it.
type Client struct {
	conn *rpc.Conn
	c    pb.ControlClient
}

// Dial connects to the head at addr (host:port) with an access token, which also says whom to believe.
func Dial(ctx context.Context, addr, token string) (*Client, error) {
	t, err := pki.ParseToken(token)
	if err != nil {
		return nil, err
	}
	if t.Kind != pki.Access {
		return nil, fault.New(fault.Invalid, "the token is one for joining, not for access: penstock token create --scope makes one")
	}
	return dial(ctx, addr, rpc.AsPerson(t))
}

// DialLocal connects to the head of a folder on this machine, as its user or root, who may do everything.
func DialLocal(ctx context.Context, dir string) (*Client, error) {
	return dial(ctx, "unix:"+head.SocketIn(dir), rpc.AtSocket())
}

func dial(ctx context.Context, addr string, creds rpc.Creds) (*Client, error) {
	conn, err := rpc.Dial(ctx, addr, creds)
	if err != nil {
		return nil, err
	}
	return &Client{conn, pb.NewControlClient(conn)}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Status is how a cluster stands.
type Status struct {
	ID      string
	Version string
	At      time.Time
	Nodes   []NodeStatus // by id
	Waiting []Waiting    // the oldest first
}

// NodeStatus is how a node stands.
type NodeStatus struct {
	ID        string
	Name      string
	State     string // alive, suspect, draining, lost, left
	Total     Resources
	Booked    Resources // what its processes asked for
	Used      Resources // memory and GPUs in use, as measured last
	Labels    map[string]string
	Address   string // "": the head's own
	Version   string
	Processes int
	Seen      time.Time
}

// Waiting is a job that waits for nodes.
type Waiting struct {
	Job   string
	Why   string
	Since time.Time
}

// Watch calls f with the status, and again when it has changed, at most twice a second, until f fails or ctx ends. Without follow it calls f once.
func (c *Client) Watch(ctx context.Context, follow bool, f func(*Status) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.c.Watch(ctx, &pb.WatchRequest{Follow: follow})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s := &Status{ID: m.GetId(), Version: m.GetVersion(), At: timeOf(m.GetUnixNanos())}
		for _, n := range m.GetNodes() {
			inv := n.GetInventory()
			s.Nodes = append(s.Nodes, NodeStatus{ID: n.GetId(), Name: inv.GetName(), State: n.GetState(), Total: resourcesOf(inv.GetCapacity()), Booked: resourcesOf(n.GetBooked()), Used: resourcesOf(n.GetUsed()),
				Labels: inv.GetLabels(), Address: n.GetAddress(), Version: inv.GetVersion(), Processes: int(n.GetProcesses()), Seen: timeOf(n.GetSeenUnixNanos())})
		}
		for _, w := range m.GetWaiting() {
			s.Waiting = append(s.Waiting, Waiting{w.GetJob(), w.GetWhy(), timeOf(w.GetSinceUnixNanos())})
		}
		if err := f(s); err != nil {
			return err
		}
	}
}

// Status asks once.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	var s *Status
	err := c.Watch(ctx, false, func(x *Status) error { s = x; return nil })
	return s, err
}

// Drain takes no new work to a node (id or name), and ends what runs there within grace: it starts again elsewhere, not counted as a failure.
func (c *Client) Drain(ctx context.Context, node string, grace time.Duration) error {
	_, err := c.c.Drain(ctx, &pb.DrainRequest{Node: node, GraceMs: grace.Milliseconds()})
	return err
}

// Undrain lets a node have work again.
func (c *Client) Undrain(ctx context.Context, node string) error {
	_, err := c.c.Undrain(ctx, &pb.DrainRequest{Node: node})
	return err
}

// StopNode ends a node, with what it runs; it is of the cluster no more.
func (c *Client) StopNode(ctx context.Context, node string, grace time.Duration) error {
	_, err := c.c.Shutdown(ctx, &pb.ShutdownRequest{Node: node, GraceMs: grace.Milliseconds()})
	return err
}

// StopAll ends all nodes that are attached, with what they run, and then the head.
func (c *Client) StopAll(ctx context.Context, grace time.Duration) error {
	_, err := c.c.Shutdown(ctx, &pb.ShutdownRequest{All: true, GraceMs: grace.Milliseconds()})
	return err
}

// Token is what is known of a token: not its secret.
type Token struct {
	ID      string
	Kind    string // join, access
	Scope   string // of access: read, submit, admin
	Name    string
	Created time.Time
	Expires time.Time
	UsedBy  string // node, of one for joining
	Revoked bool
	// Authority is the pin that it carries, and Believed how that authority stands: see
	// Authority.State.
	Authority, Believed string
	Owner               string // of access: whose jobs are those that it submits
	Project             string // of access: the only one that it is for; "": all
}

// CreateJoinToken makes a token with which one machine can join; ttl 0: an hour.
func (c *Client) CreateJoinToken(ctx context.Context, name string, ttl time.Duration) (token string, err error) {
	r, err := c.c.CreateToken(ctx, &pb.CreateTokenRequest{Kind: "join", Name: name, TtlMs: ttl.Milliseconds()})
	return r.GetToken(), err
}

// Access is what a token for people and scripts is for.
type Access struct {
	Scope   string        // read, submit (runs code as the user of the nodes) or admin
	Name    string        // for lists
	Owner   string        // whose jobs are those that it submits: tokens that have one owner have them together; "": the token's alone
	Project string        // the only one that it is for; "": all
	TTL     time.Duration // 0: 90 days
}

// CreateAccessToken makes a token that belongs to nobody else, for all projects; ttl 0: 90 days.
func (c *Client) CreateAccessToken(ctx context.Context, scope, name string, ttl time.Duration) (token string, err error) {
	return c.CreateAccess(ctx, Access{Scope: scope, Name: name, TTL: ttl})
}

// CreateAccess makes a token for people and scripts.
func (c *Client) CreateAccess(ctx context.Context, a Access) (token string, err error) {
	r, err := c.c.CreateToken(ctx, &pb.CreateTokenRequest{Kind: "access", Scope: a.Scope, Name: a.Name, TtlMs: a.TTL.Milliseconds(), Owner: a.Owner, Project: a.Project})
	return r.GetToken(), err
}

// Tokens lists tokens, the oldest first.
func (c *Client) Tokens(ctx context.Context) ([]Token, error) {
	r, err := c.c.ListTokens(ctx, &pb.Empty{})
	if err != nil {
		return nil, err
	}
	var ts []Token
	for _, t := range r.GetTokens() {
		ts = append(ts, Token{t.GetId(), t.GetKind(), t.GetScope(), t.GetName(), timeOf(t.GetCreatedUnixNanos()), timeOf(t.GetExpiresUnixNanos()), t.GetUsedBy(), t.GetRevoked(), t.GetAuthority(), t.GetBelieved(), t.GetOwner(), t.GetProject()})
	}
	return ts, nil
}

// RevokeToken ends a token now.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	_, err := c.c.RevokeToken(ctx, &pb.RevokeTokenRequest{Id: id})
	return err
}

// Job is what to run: one process on one node, or one on each of several, with what it needs.
type Job struct {
	ID         string   // of the submission: the same id and content is the same job, also when that is over, until 100,000 others have ended; "": a new one each time
	Name       string   // for people
	Argv       []string // "penstock" is the node's own binary; a path begins at the working directory
	Env        map[string]string
	Secrets    map[string]string // of the environment; not in records, logs, listings
	WorkingDir string            // a folder, which every attempt gets a copy of; "": an empty one
	Sending    func(bytes int64) // called before so much of it, packed, is sent to the head; not where that has it. May be nil
	Nodes      int               // on how many it runs, together or not at all, each process with its own Needs (docs/cluster.md, "Several nodes"); 0: one
	Needs      Resources
	Labels     map[string]string // that its nodes must have
	Data       DataNodes         // beside Nodes
	Crashes    int64             // ends by a signal that are survived; < 0: any number
	Retries    int64             // exit codes other than 0 that are survived; < 0: any number
}

// DataNodes are nodes of a job that read and compute for the others: a training run has no workers there (docs/cluster.md, "Data nodes"). Their processes are the last ones of the job.
type DataNodes struct {
	Nodes  int               // how many; 0: none
	Needs  Resources         // of the process on each
	Labels map[string]string // that they must have; those of the job are not asked for
}

// Submit makes a job, and returns its id; existed: it had been submitted before.
func (c *Client) Submit(ctx context.Context, j Job) (id string, existed bool, err error) {
	if err := j.plain(); err != nil {
		return "", false, err
	}
	q := &pb.Job{Submission: j.ID, Name: j.Name, Argv: j.Argv, Env: j.Env, Secrets: j.Secrets, Resources: j.Needs.wire(), Labels: j.Labels, Crashes: &j.Crashes, Retries: j.Retries}
	if j.Nodes != 1 { // 0 is the same submission
		q.Nodes = int64(j.Nodes)
	}
	if d := j.Data; d.Nodes != 0 {
		q.Data = &pb.DataNodes{Nodes: int64(d.Nodes), Resources: d.Needs.wire(), Labels: d.Labels}
	}
	if j.WorkingDir != "" {
		if q.Pack, err = c.send(ctx, j.WorkingDir, j.Sending); err != nil {
			return "", false, err
		}
	}
	r, err := c.c.Submit(ctx, q)
	return r.GetJob(), r.GetExisted(), err
}

// CheckSent is an error where the file path (with slashes, from dir) of the working directory dir would not be sent with it.
func CheckSent(dir, path string) error {
	out, err := packs.LeftOut(dir, path)
	if out {
		return fault.New(fault.Invalid, "the nodes would not get %s: %s in %s leaves it out; change the line that names it", path, packs.IgnoreFile, dir)
	}
	return err
}

// send packs a folder, and brings it to the head unless it is there.
func (c *Client) send(ctx context.Context, dir string, sending func(bytes int64)) (string, error) {
	tmp, err := os.CreateTemp("", "penstock-pack-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	info, err := packs.Create(ctx, dir, tmp, packs.Limits{})
	if err != nil {
		return "", err
	}
	hash := string(info.Hash)
	has, err := c.c.HasPack(ctx, &pb.PackRequest{Sha256: hash})
	if err != nil || has.GetHas() {
		return hash, err
	}
	if sending != nil {
		sending(info.Packed)
	}
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.c.PutPack(ctx)
	if err != nil {
		return "", err
	}
	buf := make([]byte, 1<<20)
	for first := true; ; first = false {
		n, err := io.ReadFull(tmp, buf)
		if n > 0 || first {
			chunk := &pb.Chunk{Data: buf[:n]}
			if first {
				chunk.Sha256 = hash
			}
			if serr := stream.Send(chunk); serr != nil {
				break // CloseAndRecv says why
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return "", err
			}
			break
		}
	}
	_, err = stream.CloseAndRecv()
	return hash, err
}

// JobStatus is how a job stands.
type JobStatus struct {
	ID         string
	Submission string // id of it; "": none
	Name       string
	State      string // queued, starting, running, restarting, stopping, finished, failed, stopped
	Why        string // what it waits for, or the first cause; of one that finished, what its logs lack
	Argv       []string
	Size       int       // on how many nodes it runs, data nodes included
	Data       DataNodes // of them
	Needs      Resources // of each of its other processes: the memory is that of the last attempt, which may be more than was asked for
	Attempts   int64
	Nodes      []string // where the processes of the attempt are, by their number, or, of a job that is over, those of the last one were; none: it waits, or never ran
	Code       int      // of the process that Why is of
	Failures   map[string]int64
	Submitted  time.Time
	Started    time.Time
	Ended      time.Time
	Owner      string // of its token, or uid:NUMBER of a user of the head's machine: who may stop it, beside administrators
	Token      string // id of the one that it was submitted with; "": none
	Project    string // "": of none
}

// Over reports whether the job has ended.
func (j *JobStatus) Over() bool {
	return j.State == "finished" || j.State == "failed" || j.State == "stopped"
}

// Jobs lists jobs by id or id of submission; without any, all, the newest first.
func (c *Client) Jobs(ctx context.Context, ids ...string) ([]JobStatus, error) {
	var js []JobStatus
	for q := (&pb.JobsRequest{Jobs: ids}); ; q.Before = js[len(js)-1].ID {
		r, err := c.c.Jobs(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, j := range r.GetJobs() {
			js = append(js, JobStatus{ID: j.GetId(), Submission: j.GetJob().GetSubmission(), Name: j.GetJob().GetName(), State: j.GetState(), Why: j.GetWhy(), Argv: j.GetJob().GetArgv(), Size: int(max(j.GetJob().GetNodes(), 1) + j.GetJob().GetData().GetNodes()), Data: dataOf(j.GetJob().GetData()), Needs: resourcesOf(j.GetJob().GetResources()), Attempts: j.GetAttempts(), Nodes: j.GetNodes(),
				Code: int(j.GetCode()), Failures: j.GetFailures(), Submitted: timeOf(j.GetSubmittedUnixNanos()), Started: timeOf(j.GetStartedUnixNanos()), Ended: timeOf(j.GetEndedUnixNanos()),
				Owner: j.GetOwner(), Token: j.GetToken(), Project: j.GetProject()})
		}
		if !r.GetMore() || len(r.GetJobs()) == 0 {
			break
		}
	}
	return js, nil
}

func dataOf(d *pb.DataNodes) DataNodes {
	return DataNodes{int(d.GetNodes()), resourcesOf(d.GetResources()), d.GetLabels()}
}

// StopJob ends a job within grace. One that is over stays as it is.
func (c *Client) StopJob(ctx context.Context, id string, grace time.Duration) error {
	_, err := c.c.StopJob(ctx, &pb.StopJobRequest{Job: id, GraceMs: grace.Milliseconds()})
	return err
}

func timeOf(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}
