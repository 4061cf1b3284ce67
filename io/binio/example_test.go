package binio_test

import (
	"fmt"

	"github.com/penstock-data/penstock/io/binio"
	"github.com/penstock-data/penstock/io/fileset"
)

func ExampleNew() {
	src := binio.New(binio.Options{Options: fileset.Options{Paths: []string{"images/**/*.jpg"}}})
	config, err := src.Config()
	fmt.Println(string(config), err)
	// Output: {"paths":["images/**/*.jpg"]} <nil>
}
