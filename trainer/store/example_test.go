package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/penstock-data/penstock/trainer/store"
)

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "penstock-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	saved := filepath.Join(dir, "saved")
	if err := os.Mkdir(saved, 0o777); err == nil {
		err = os.WriteFile(filepath.Join(saved, "model.bin"), []byte("weights"), 0o666)
	}
	if err != nil {
		fmt.Println(err)
		return
	}

	run, err := store.Create(ctx, filepath.Join(dir, "runs"), store.Record{Name: "first", Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer run.Close()
	attempt, err := run.Begin(ctx, store.BeginOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	metrics := run.Metrics(attempt.Number)
	for report := int64(1); report <= 4; report++ {
		loss := map[string]float64{"loss": 1 / float64(report)}
		if err := metrics.Append(store.Row{Report: report, Time: time.Now(), Step: 10 * report, Metrics: loss}); err != nil {
			fmt.Println(err)
			return
		}
		if report%2 != 0 {
			continue
		}
		m, err := run.Commit(ctx, store.Commit{Report: report, Metrics: loss, World: 2, Parts: []store.Part{{Rank: 0, Dir: saved}}})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("checkpoint %d: report %d, %d bytes\n", m.Number, m.Report, m.Bytes)
	}

	list, err := run.Checkpoints(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	best, _ := store.Best(list, "loss", "min")
	files, err := run.Fetch(ctx, best, filepath.Join(dir, "cache"))
	if err != nil {
		fmt.Println(err)
		return
	}
	data, err := os.ReadFile(filepath.Join(files, "model.bin"))
	fmt.Printf("best is %d: %s %v\n", best.Number, data, err)
	for row, err := range run.History(ctx) {
		fmt.Println(row.Report, row.Step, row.Metrics["loss"], err)
	}
	// Output:
	// checkpoint 1: report 2, 7 bytes
	// checkpoint 2: report 4, 7 bytes
	// best is 2: weights <nil>
	// 1 10 1 <nil>
	// 2 20 0.5 <nil>
	// 3 30 0.3333333333333333 <nil>
	// 4 40 0.25 <nil>
}
