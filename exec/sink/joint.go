package sink

import (
	"context"
	"encoding/json"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
)

// Join implements exec.Joint: the leader's Begin has made the job's record, and this process agrees with it.
func (s *Files) Join(ctx context.Context, schema *arrow.Schema, splits []exec.SinkSplit) (err error) {
	if s.plan != nil || s.out != nil {
		return fault.New(fault.Internal, "a sink serves one run")
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := s.open(ctx, schema); err != nil {
		return err
	}
	s.proc = randomHex()
	want := s.record(splits)
	name := want.dir() + "job.json"
	data, err := s.out.b.ReadAll(ctx, s.out.rec.prefix+name, maxSmall)
	if fault.CodeOf(err) == fault.NotFound {
		return fault.New(fault.NotFound, "the job that node 0 has begun is not here: an output that several nodes write must lie in a bucket, or on a file system that all of them have").
			At(fault.Place{File: s.out.path("")})
	}
	if err != nil {
		return err
	}
	if s.dead != nil {
		want.DeadLetter = &deadRecord{URL: s.dead.url, Prefix: s.dead.prefix}
	}
	have, err := decodeJob(data)
	if err == nil {
		err = want.agrees(have)
	}
	if err != nil {
		return fault.Wrap(err, fault.Place{File: s.out.rec.path(name)})
	}
	s.job, s.receipts = have, make([]*receipt, len(have.Parts))
	s.plan = &exec.SinkPlan{Parts: have.ranges()}
	s.lock, err = lockStage(ctx, s.out.rec, have.dir()+"stage/", s.proc)
	return err
}

// Report implements exec.Joint: the receipt that counts.
func (s *Files) Report(part int) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return json.Marshal(s.receipts[part])
}

// Adopt implements exec.Joint. It reads the receipt: what another process says is no promise that it is where this one looks.
func (s *Files) Adopt(ctx context.Context, part int, report []byte) error {
	told, err := decodeReceipt(report)
	if err != nil {
		return fault.New(fault.Corrupt, "what another process says of part %d: %w", part, err)
	}
	r, err := s.readReceipt(ctx, part)
	if err != nil {
		return err
	}
	if r == nil || r.Attempt != told.Attempt || r.Rows != told.Rows {
		return fault.New(fault.NotFound, "another node has finished part %d, and its receipt is not here: an output that several nodes write must lie in a bucket, or on a file system that all of them have", part).
			At(fault.Place{File: s.out.rec.path(s.job.dir() + receiptName(part))})
	}
	s.won(r)
	return nil
}

// Leave implements exec.Joint. Finished parts, and their files, are the leader's.
func (s *Files) Leave() error {
	if s.out != nil {
		s.close()
	}
	return nil
}
