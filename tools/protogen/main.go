// Command protogen writes the Go code of .proto files beside them, with protoc-gen-go and protoc-gen-go-grpc of this module: nobody needs protoc.
//
//	make proto
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"

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
	req := &pluginpb.CodeGeneratorRequest{FileToGenerate: []string{name}, Parameter: proto.String("paths=source_relative")}
	req.ProtoFile = []*descriptorpb.FileDescriptorProto{protodesc.ToFileDescriptorProto(files[0])}
	in, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	for _, p := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
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
			if err := os.WriteFile(filepath.Join(filepath.Dir(file), f.GetName()), []byte(f.GetContent()), 0o666); err != nil {
				return err
			}
		}
	}
	return nil
}
