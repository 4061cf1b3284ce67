package head

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

// With as many jobs as a cluster has, the next one is refused, and all of them can be listed.
func TestManyJobs(t *testing.T) {
	dir, err := os.MkdirTemp("", "ph")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	h, err := Start(t.Context(), Config{Dir: filepath.Join(dir, "head")})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Stop(0)
	c := controlServer{h: h}
	job := &pb.Job{Argv: []string{"penstock", "run", "spec.yaml", strings.Repeat("x", 1000)}, Env: map[string]string{"KEY": "value"}, Resources: &pb.Resources{MilliCpus: 1000}}
	for range 3 {
		if _, err := c.Submit(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.do(t.Context(), func() error {
		for i := 4; i <= mostJobs; i++ { // as if they were in the store
			id := fmt.Sprintf("j%d", i)
			h.jobs[id] = &records.Record[jobRecord]{ID: id, Value: jobRecord{Job: job, Record: jobs.Record{State: jobs.Queued}, Submitted: time.Now()}}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Submit(t.Context(), job); fault.CodeOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "10000 jobs wait or run") {
		t.Errorf("the %dth: %v", mostJobs+1, err)
	}
	next := mostJobs
	for before, more := "", true; more; {
		list, err := c.Jobs(t.Context(), &pb.JobsRequest{Before: before})
		if err != nil || len(list.GetJobs()) == 0 {
			t.Fatalf("nothing before %s: %v", before, err)
		}
		for _, j := range list.GetJobs() {
			if j.GetId() != fmt.Sprintf("j%d", next) {
				t.Fatalf("%s comes instead of j%d", j.GetId(), next)
			}
			next--
		}
		if n := proto.Size(list); n > rpc.DefaultLimits.Message {
			t.Errorf("%d jobs have %d bytes, more than a message may", len(list.GetJobs()), n)
		}
		before, more = list.GetJobs()[len(list.GetJobs())-1].GetId(), list.GetMore()
	}
	if next != 0 {
		t.Errorf("%d jobs are not listed", next)
	}
}
