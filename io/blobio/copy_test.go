package blobio_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/blobio"
)

// A copy has the bytes of the original, replaces what is there, and survives faults.
func TestCopy(t *testing.T) {
	s := testserver.S3(t)
	s.CreateBucket(t, "copies")
	p := testserver.NewProxy(t, s, testserver.Faults{Error: 0.3})
	for name, url := range map[string]string{"local": "file:///", "mem": "mem://copies", "s3": s.Via(p).URL("copies")} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			b, err := blobio.Open(ctx, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			data := bytes.Repeat([]byte("0123456789"), 50_000)
			prefix := ""
			if name == "local" {
				prefix = t.TempDir()[1:] + "/"
			}
			if err := b.Put(ctx, prefix+"from", data, nil); err != nil {
				t.Fatal(err)
			}
			if err := b.Put(ctx, prefix+"to", []byte("old"), nil); err != nil {
				t.Fatal(err)
			}
			for range 5 {
				if err := b.Copy(ctx, prefix+"to", prefix+"from"); err != nil {
					t.Fatal(err)
				}
			}
			got, err := b.ReadAll(ctx, prefix+"to", 1<<20)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			if err := b.Copy(ctx, prefix+"to", prefix+"nosuch"); fault.CodeOf(err) != fault.NotFound {
				t.Fatalf("no source: %v", err)
			}
		})
	}
	if p.Errors.Load() == 0 {
		t.Error("the server never failed")
	}
}
