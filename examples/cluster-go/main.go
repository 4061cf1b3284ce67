// Command cluster-go writes the late flights, and says how many there are. It is the same program alone, and on several nodes of a cluster together:
//
//	CGO_ENABLED=0 go build -o late ./examples/cluster-go
//	./late -out out/late/
//	penstock submit --cluster head.example.org:7071 --nodes 3 --cpus 4 -- ./late -in 's3://bucket/flights/**/*.parquet' -out s3://bucket/late/
//
// Either way the files are the same, byte for byte. Where a node is lost the job starts again, and goes on with the parts that are not finished.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	_ "gocloud.dev/blob/s3blob" // the buckets that this program opens

	"github.com/penstock-data/penstock"
	"github.com/penstock-data/penstock/dataset"
)

func main() {
	p, err := penstock.Init()
	if err == nil {
		err = late(p)
	}
	os.Exit(p.Exit(err))
}

func late(p *penstock.Process) error {
	in := flag.String("in", "examples/data/flights/**/*.parquet", "flights: files, folders and globs, local or of a bucket")
	out := flag.String("out", "", "folder or bucket `URL` for the late ones")
	minutes := flag.Int("minutes", 30, "how late is late")
	size := flag.Int64("size", 256<<20, "`bytes` of a file to aim at")
	flag.Parse()
	if *out == "" {
		return errors.New("where to? Give -out")
	}
	// All nodes make the same plan. One that is not node 0 works for it in WriteParquet, and gets exec.ErrServed, which is no failure: Exit knows.
	r, err := dataset.ReadParquet(*in).
		Filter(fmt.Sprintf("delay > %d && distance > 0", *minutes)).
		WithColumns("delay_per_mile = double(delay) / distance").
		WriteParquet(context.Background(), *out, &dataset.WriteOptions{RunOptions: *p.Run(nil), Mode: "overwrite", TargetBytes: *size})
	if err != nil {
		return err
	}
	fmt.Printf("%d flights were more than %d minutes late: %d files in %s\n", r.Rows, *minutes, r.Files, *out)
	return nil
}
