package blobio_test

import (
	"context"
	"fmt"
	"io"
	"log"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/io/blobio"
)

func Example() {
	ctx := context.Background()
	url, key, err := blobio.Split("mem://example/days/monday.csv")
	if err != nil {
		log.Fatal(err)
	}
	b, err := blobio.Open(ctx, url, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	if err := b.Put(ctx, key, []byte("hour,visits\n1,17\n2,4\n"), &blobio.PutOptions{IfNotExist: true}); err != nil {
		log.Fatal(err)
	}

	for info, err := range b.List(ctx, "days/") {
		if err != nil {
			log.Fatal(err)
		}
		o := b.Object(info, nil)
		fmt.Println(o.Path(), o.Size())

		f, err := o.Fetch(ctx, []blobio.Range{{Off: 12, Len: 4}, {Off: 17, Len: 3}}, memory.DefaultAllocator)
		if err != nil {
			log.Fatal(err)
		}
		line, _ := f.Bytes(12, 4)
		fmt.Printf("%q\n", line)
		f.Release()

		s := o.Stream(ctx, 0, o.Size())
		all, err := io.ReadAll(s)
		s.Close()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q\n", all)
	}
	// Output:
	// mem://example/days/monday.csv 21
	// "1,17"
	// "hour,visits\n1,17\n2,4\n"
}

func ExampleBucket_Create() {
	ctx := context.Background()
	b, err := blobio.Open(ctx, "mem://example-create", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	w, err := b.Create(ctx, "log.txt", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer w.Abort() // does nothing after Close
	fmt.Fprintln(w, "one line")
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	data, err := b.ReadAll(ctx, "log.txt", 1<<20)
	fmt.Printf("%q %v\n", data, err)
	// Output: "one line\n" <nil>
}
