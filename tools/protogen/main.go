// Command protogen writes the Go code of .proto files beside them, with protoc-gen-go and protoc-gen-go-grpc of this module: nobody needs protoc.
//
//	make proto
package main

import (
	"bytes"
	"context"
	"fmt"
	"go/format"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: protogen FOLDER-OF-PLUGINS FILE.proto...")
	}
	for _, file := range os.Args[2:] {
		if err := generate(os.Args[1], file); err != nil {
			log.Fatalf("%s: %v", file, err)
		}
	}
}

func generate(plugins, file string) error {
	c := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{filepath.Dir(file)}},
		SourceInfoMode: protocompile.SourceInfoStandard, // comments go into the code
	}
	name := filepath.Base(file)
	files, err := c.Compile(context.Background(), name)
	if err != nil {
		return err
	}
	req := &pluginpb.CodeGeneratorRequest{FileToGenerate: []string{name}}
	req.ProtoFile = []*descriptorpb.FileDescriptorProto{protodesc.ToFileDescriptorProto(files[0])}
	for p, options := range map[string]string{"protoc-gen-go": "", "protoc-gen-go-grpc": ",require_unimplemented_servers=false"} {
		req.Parameter = proto.String("paths=source_relative" + options)
		in, err := proto.Marshal(req)
		if err != nil {
			return err
		}
		cmd := exec.Command(filepath.Join(plugins, p))
		cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		var res pluginpb.CodeGeneratorResponse
		if err := proto.Unmarshal(out, &res); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if res.Error != nil {
			return fmt.Errorf("%s: %s", p, res.GetError())
		}
		for _, f := range res.File {
			code, err := format.Source(stubs.ReplaceAll([]byte(f.GetContent()), nil))
			if err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
			if err := os.WriteFile(filepath.Join(filepath.Dir(file), f.GetName()), code, 0o666); err != nil {
				return err
			}
		}
	}
	return nil
}

// stubs are what protoc-gen-go-grpc writes, without an option to leave it out, for servers that lack methods: ours have all, and the compiler says so.
var stubs = regexp.MustCompile(`(?m)` +
	`^// All implementations should embed Unimplemented.*\n// for forward compatibility\.\n` +
	`|^(?:// Unimplemented\w+ should be embedded.*\n(?://.*\n)*)type Unimplemented\w+ struct ?{}\n\n` +
	`|^func \(Unimplemented\w+\) .*(?:{}\n\n?|{\n.*\n}\n)` +
	`|^// Unsafe\w+ may be embedded.*\n(?://.*\n)*type Unsafe\w+ interface {\n.*\n}\n\n` +
	`|^\t// If the following call panics, .*\n(?:\t//.*\n)*\tif t, ok := .*\n.*\n\t}\n` +
	`|^\t(?:codes|status) "google.golang.org/grpc/(?:codes|status)"\n`)
