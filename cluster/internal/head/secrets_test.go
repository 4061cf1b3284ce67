package head

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
)

// A head that starts again gives jobs the secrets that they were submitted with; one whose secrets it cannot read fails, and says why, also on several nodes, and the others go on.
func TestSecretsAreLost(t *testing.T) {
	dir := shortDir(t)
	h := startHead(t, dir)
	file := func(job string) string { return filepath.Join(dir, "secrets", job) }
	for _, nodes := range []int64{1, 1, 1, 2} {
		q := &pb.Job{Argv: []string{"x"}, Nodes: nodes, Resources: &pb.Resources{MilliCpus: 1000}, Secrets: map[string]string{"TOKEN": "worth", "OTHER": "hiding"}}
		if _, err := (controlServer{h: h}).Submit(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	h.Stop(0)
	for name, text := range map[string]string{"j1": `{"TOKEN":"worth"}`, "j2": `{"TOKEN":"wor`, "j4": ""} {
		err := os.WriteFile(file(name), []byte(text), 0o600)
		if text == "" {
			err = os.Remove(file(name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	h = startHead(t, dir)
	a := attach(t, h, "")
	attach(t, h, "")
	m := a.hear()
	for ; m.GetHeard() != ""; m = a.hear() { // what it never got
	}
	third := "j3/1/0/" + h.core.Life
	if s := m.GetStart(); s.GetProcess() != third || s.GetEnv()["TOKEN"] != "worth" || s.GetEnv()["OTHER"] != "hiding" {
		t.Fatalf("it hears %v", m)
	}
	a.say(&pb.FromAgent{Say: &pb.FromAgent_Exited{Exited: &pb.Exited{Process: third}}})
	for a.hear().GetHeard() != third { // or what it never got
	}
	if err := h.do(t.Context(), func() error {
		for job, damage := range map[string]string{"j1": " is damaged)", "j2": " is damaged)", "j4": "no such file or directory)"} {
			r := h.jobs[job].Value.Record
			if r.State != jobs.Failed || r.Attempt != 1 || !strings.Contains(r.Why, "refused: the head has lost the job's secrets (") || !strings.Contains(r.Why, damage+", and does not start it without them: submit it again") || strings.Contains(r.Why, "wor") {
				t.Errorf("job %s: %+v", job, r)
			}
		}
		if r := h.jobs["j3"].Value.Record; r.State != jobs.Finished {
			t.Errorf("%+v", r)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "secrets")); err != nil || len(left) > 0 {
		t.Errorf("secrets of jobs that are over: %v, %v", left, err)
	}
}

// A job that fails has its last words on record, without its secrets, also where they were cut, and whenever its node says them.
func TestSecretsAreMasked(t *testing.T) {
	for name, x := range map[string]struct{ text, want string }{
		"whole":             {"worth is wrong: worth", "user: *** is wrong: ***"},
		"lines":             {"exit code 3: -----END KEY-----\nMIIEvQIBADAN\n-----END KEY-----", "user: exit code 3: ***\n***\n***"},
		"longer":            {"worth-and-more", "user: ***"},
		"cut":               {strings.Repeat("x", 4090) + "MIIEvQIBADAN", "user: " + strings.Repeat("x", 4090) + "***"},
		"half a character":  {strings.Repeat("x", 4095) + "\u00e4", "user: " + strings.Repeat("x", 4095)},
		"too short to mask": {"it is on", "user: it is on"},
	} {
		for _, again := range []bool{false, true} { // its node attaches again, and says it with that
			h := startHead(t, shortDir(t))
			q := &pb.Job{Argv: []string{"x"}, Nodes: 1, Resources: &pb.Resources{MilliCpus: 1000}, Secrets: map[string]string{"TOKEN": "worth", "LONGER": "worth-and-more", "SHORT": "on",
				"KEY": "-----BEGIN KEY-----\nMIIEvQIBADAN\n-----END KEY-----\n"}}
			if _, err := (controlServer{h: h}).Submit(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			a := attach(t, h, "")
			m := a.hear()
			for ; m.GetStart() == nil; m = a.hear() {
			}
			process := m.GetStart().GetProcess()
			if got := m.GetStart().GetSecrets(); !slices.Equal(got, []string{"KEY", "LONGER", "SHORT", "TOKEN"}) {
				t.Errorf("its node is to mask %q", got)
			}
			end := &pb.Exited{Process: process, Class: string(jobs.User), Code: 1, Text: x.text, At: []string{"worth.parquet"}}
			if again {
				conn, err := h.srv.Node(pki.Identity{Cluster: h.id, Role: pki.Node, Node: a.id})
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if a.stream, err = pb.NewNodeClient(conn).Attach(t.Context()); err != nil {
					t.Fatal(err)
				}
				a.say(&pb.FromAgent{Say: &pb.FromAgent_Hello{Hello: &pb.Hello{Inventory: &pb.Inventory{Name: "name-" + a.id, Capacity: &pb.Resources{MilliCpus: 1000}}, Exited: []*pb.Exited{end}}}})
			} else {
				a.say(&pb.FromAgent{Say: &pb.FromAgent_Exited{Exited: end}})
			}
			for a.hear().GetHeard() != process {
			}
			list, err := (controlServer{h: h}).Jobs(t.Context(), &pb.JobsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if s := list.GetJobs()[0]; s.GetState() != string(jobs.Failed) || s.GetWhy() != x.want {
				t.Errorf("%s, again %v: %s: %q, want %q", name, again, s.GetState(), s.GetWhy(), x.want)
			}
			h.Stop(0)
		}
	}
}

// The record of a submission says nothing about its secrets without the authority's key, and is the same after another start of the head.
func TestDigestIsKeyed(t *testing.T) {
	dir := shortDir(t)
	q := &pb.Job{Submission: "nightly", Argv: []string{"x"}, Secrets: map[string]string{"PIN": "1234"}}
	record := func(h *Head, existed bool) string {
		t.Helper()
		defer h.Stop(0)
		if r, err := (controlServer{h: h}).Submit(t.Context(), q); err != nil || r.GetJob() != "j1" || r.GetExisted() != existed {
			t.Fatalf("%v, %v", r, err)
		}
		r, err := h.t.submissions.Get(t.Context(), "nightly")
		if err != nil {
			t.Fatal(err)
		}
		return r.Value.Digest
	}
	first := record(startHead(t, dir), false)
	if again := record(startHead(t, dir), true); again != first {
		t.Errorf("%s, and after another start %s", first, again)
	}
	if elsewhere := record(startHead(t, shortDir(t)), false); elsewhere == first {
		t.Error("another cluster has the same digest")
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(b); len(first) != 2*len(sum) || first == hexOf(sum[:]) {
		t.Errorf("the digest is %s", first)
	}
}
