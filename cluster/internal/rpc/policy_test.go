package rpc

import (
	"context"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

type method struct {
	full string
	desc protoreflect.MethodDescriptor
}

// methods are all that pb has.
func methods() (out []method) {
	services := pb.File_cluster_proto.Services()
	for i := range services.Len() {
		m := services.Get(i).Methods()
		for j := range m.Len() {
			out = append(out, method{fmt.Sprintf("/%s/%s", services.Get(i).FullName(), m.Get(j).Name()), m.Get(j)})
		}
	}
	return out
}

func TestEveryMethodHasAPolicy(t *testing.T) {
	all := map[string]bool{}
	for _, m := range methods() {
		all[m.full] = true
		if policies[m.full].kind == Nobody {
			t.Errorf("%s has no policy", m.full)
		}
		if _, said := audits[m.full]; !said {
			t.Errorf("audits does not say whether what %s does is on record", m.full)
		}
	}
	for full := range policies {
		if !all[full] {
			t.Errorf("the policy of %s is of no method", full)
		}
	}
	for full, is := range audits {
		if !all[full] {
			t.Errorf("audits has %s, which is no method", full)
		}
		if p := policies[full]; !is && p.kind == Person && p.scope == Admin && !slices.Contains([]string{"Audit", "Authorities", "ListQuotas", "ListTokens"}, full[strings.LastIndex(full, "/")+1:]) {
			t.Errorf("%s is for administrators, and is not on record", full)
		}
	}
	if len(all) < 24 {
		t.Errorf("only %d methods seen", len(all))
	}
	// Other files may have services some day: none is without policies.
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(f.Package()), "penstock.") && f.Path() != pb.File_cluster_proto.Path() && f.Services().Len() > 0 {
			t.Errorf("%s has services that this test does not look at", f.Path())
		}
		return true
	})
}

func TestAServerWithAnUnknownMethodDoesNotStart(t *testing.T) {
	h := start(t)
	desc := grpc.ServiceDesc{ServiceName: "penstock.cluster.v1.Debug", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Dump"}}}
	_, err := NewServer(ServerConfig{CA: h.ca, Holder: h.holder, Tokens: h.store, Log: h.srv.log}, func(r grpc.ServiceRegistrar) {
		h.register(r)
		r.RegisterService(&desc, struct{}{})
	})
	wants(t, err, fault.Internal, "/penstock.cluster.v1.Debug/Dump has no policy")
	desc.Methods, desc.Streams = nil, []grpc.StreamDesc{{StreamName: "Tail", ServerStreams: true}}
	_, err = NewServer(ServerConfig{CA: h.ca, Holder: h.holder, Tokens: h.store, Log: h.srv.log}, func(r grpc.ServiceRegistrar) { r.RegisterService(&desc, struct{}{}) })
	wants(t, err, fault.Internal, "Tail has no policy")
	_, err = NewServer(ServerConfig{CA: h.ca, Holder: h.holder, Log: h.srv.log}, h.register)
	wants(t, err, fault.Internal, "Tokens")
}

// call calls a method with an empty message, whatever its kind, and gives the error.
func call(ctx context.Context, conn grpc.ClientConnInterface, m method) error {
	out := dynamicpb.NewMessage(m.desc.Output())
	in := dynamicpb.NewMessage(m.desc.Input())
	if !m.desc.IsStreamingClient() && !m.desc.IsStreamingServer() {
		return conn.Invoke(ctx, m.full, in, out)
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: m.desc.IsStreamingServer(), ClientStreams: m.desc.IsStreamingClient()}, m.full)
	if err != nil {
		return err
	}
	s.SendMsg(in)
	s.CloseSend()
	return s.RecvMsg(out)
}

// cameIn is what a call that was let in hears of bare.
const cameIn = "nobody is in"

// bare registers all methods. None does anything.
func bare(r grpc.ServiceRegistrar) {
	in := status.Error(codes.Unimplemented, cameIn)
	for _, d := range []grpc.ServiceDesc{pb.Join_ServiceDesc, pb.Node_ServiceDesc, pb.Control_ServiceDesc} {
		d.Methods, d.Streams = slices.Clone(d.Methods), slices.Clone(d.Streams)
		for i, m := range d.Methods {
			info := &grpc.UnaryServerInfo{FullMethod: "/" + d.ServiceName + "/" + m.MethodName}
			d.Methods[i].Handler = func(_ any, ctx context.Context, dec func(any) error, through grpc.UnaryServerInterceptor) (any, error) {
				if err := dec(&pb.Empty{}); err != nil {
					return nil, err
				}
				return through(ctx, nil, info, func(context.Context, any) (any, error) { return nil, in })
			}
		}
		for i := range d.Streams {
			d.Streams[i].Handler = func(any, grpc.ServerStream) error { return in }
		}
		r.RegisterService(&d, nil)
	}
}

// Every method by every kind of peer. Who gets in hears that nobody is.
func TestWhoMayCallWhat(t *testing.T) {
	h := start(t)
	var minutes atomic.Int64 // pass between calls: failures are forgotten
	limits := func(c *ServerConfig) {
		c.Tokens, c.CA, c.Holder = h.store, h.ca, h.holder
		c.Now = func() time.Time { return time.Now().Add(time.Duration(minutes.Load()) * time.Minute) }
	}
	cfg := ServerConfig{Log: h.srv.log}
	limits(&cfg)
	srv := must(NewServer(cfg, bare))
	defer srv.Stop(context.Background())
	h.addr = must(srv.ListenTLS("127.0.0.1:0")).String()
	h.sock += "2"
	if err := srv.ListenUnix(h.sock); err != nil {
		t.Fatal(err)
	}

	ended, revoked, wrong := h.token("ended", Admin), h.token("revoked", Admin), h.token("wrong", Admin)
	h.store.set("ended", func(r *Record) { r.Ends = time.Now().Add(-time.Second) })
	h.store.set("revoked", func(r *Record) { r.Revoked = true })
	h.store.set("wrong", func(r *Record) { r.Hash[5] ^= 1 })
	unknown := must(pki.NewToken(pki.Access, "unknown", h.ca.Pin()))
	scopeless := h.token("scopeless", None)
	beyond := h.token("beyond", Admin+1)
	none := Creds{pin: h.ca.Pin, set: true}
	inProcess := must(srv.Node(pki.Identity{Cluster: "c1", Role: pki.Node, Node: "n1", Epoch: 2}))
	defer inProcess.Close()

	person := func(s Scope) func(policy) bool {
		return func(p policy) bool { return p.kind == Person && s >= p.scope }
	}
	nobody := func(policy) bool { return false }
	for _, peer := range []struct {
		name string
		conn *Conn
		may  func(policy) bool
		md   []string
	}{
		{"newcomer", h.dial(none), func(p policy) bool { return p.kind == Newcomer }, nil},
		{"node", h.dial(AsNode(node(t, h.ca, "n7", 1), h.ca.Pin)), func(p policy) bool { return p.kind == Node }, nil},
		{"node within the process", inProcess, func(p policy) bool { return p.kind == Node }, nil},
		{"read", h.dial(AsPerson(h.token("r", Read))), person(Read), nil},
		{"submit", h.dial(AsPerson(h.token("s", Submit))), person(Submit), nil},
		{"admin", h.dial(AsPerson(h.token("a", Admin))), person(Admin), nil},
		{"ended", h.dial(AsPerson(ended)), nobody, nil},
		{"revoked", h.dial(AsPerson(revoked)), nobody, nil},
		{"wrong secret", h.dial(AsPerson(wrong)), nobody, nil},
		{"unknown", h.dial(AsPerson(unknown)), nobody, nil},
		{"no scope", h.dial(AsPerson(scopeless)), nobody, nil},
		{"a scope that is none", h.dial(AsPerson(beyond)), nobody, nil},
		{"socket", h.dial(AtSocket()), func(p policy) bool { return p.kind == Person }, nil},
		{"node with a token", h.dial(AsNode(node(t, h.ca, "n7", 1), h.ca.Pin)), nobody, []string{"authorization", "Bearer " + h.token("x", Admin).Bearer()}},
		{"socket with a token", h.dial(AtSocket()), nobody, []string{"authorization", "Bearer " + h.token("y", Admin).Bearer()}},
		{"two tokens", h.dial(AsPerson(h.token("z", Admin))), nobody, []string{"authorization", "Bearer " + h.token("z2", Admin).Bearer()}},
		{"basic", h.dial(none), nobody, []string{"authorization", "Basic YTpi"}},
		{"no form", h.dial(none), nobody, []string{"authorization", "Bearer x"}},
		{"empty", h.dial(none), nobody, []string{"authorization", ""}},
		{"identity by header", h.dial(none), func(p policy) bool { return p.kind == Newcomer }, []string{"x-forwarded-client-cert", "URI=penstock://c1/node/n7/1", "peer", "admin"}},
	} {
		t.Run(peer.name, func(t *testing.T) {
			in := 0
			for _, m := range methods() {
				minutes.Add(1)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				err := call(metadata.AppendToOutgoingContext(ctx, peer.md...), peer.conn, m)
				cancel()
				switch want := peer.may(policies[m.full]); {
				case want && fault.CodeOf(err) == fault.Unsupported && strings.Contains(err.Error(), cameIn):
					in++
				case !want && fault.CodeOf(err) == fault.Denied:
				default:
					t.Errorf("%s: may %v, got %v (%v)", m.full, want, err, fault.CodeOf(err))
				}
			}
			if peer.may(policy{kind: Person, scope: Admin}) && in != 20 {
				t.Errorf("%d methods for an administrator", in)
			}
		})
	}
	t.Run("what does not exist", func(t *testing.T) {
		for _, full := range []string{"/penstock.cluster.v1.Control/Nothing", "/x/y", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "penstock.cluster.v1.Control/Watch", "//penstock.cluster.v1.Control/Watch"} {
			for _, c := range []Creds{none, AtSocket()} {
				err := h.dial(c).Invoke(t.Context(), full, &pb.Empty{}, &pb.Empty{})
				if err == nil || fault.CodeOf(err) == fault.Denied && c.socket && strings.HasPrefix(full, "/") && !strings.HasPrefix(full, "//") {
					t.Errorf("%s: %v", full, err)
				}
			}
		}
	})
	for _, secret := range []string{strings.Split(wrong.Bearer(), ".")[1], strings.Split(unknown.Bearer(), ".")[1], strings.Split(revoked.Bearer(), ".")[1]} {
		if strings.Contains(h.log.String(), secret) {
			t.Error("a secret is in the log")
		}
	}
}

// Certificates that are refused: there is no connection to call over.
func TestWrongCertificates(t *testing.T) {
	h := start(t)
	past := func() time.Time { return time.Now().Add(-26 * time.Hour) }
	key := must(pki.NewKey())
	old := must(pki.OpenCA(filepath.Join(t.TempDir(), "ca"), "c1", past))
	for what, holder := range map[string]*pki.Holder{
		"another authority": node(t, newCA(t, nil), "n7", 1),
		"a head's":          pki.NewHolder(must(h.ca.IssueHead("x")), nil),
		"ended, of another": pki.NewHolder(must(pki.Assemble(must(old.IssueNode(must(pki.NewCSR(key)), "n7", 1)), key, old.Pin(), pki.Node)), nil),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := Dial(ctx, h.addr, AsNode(holder, h.ca.Pin))
		wants(t, err, fault.Denied, h.addr, "refuses this machine's certificate")
		_ = what
	}
	// A certificate that was good and has ended.
	late := start(t, func(c *ServerConfig) {
		ahead := func() time.Time { return time.Now().Add(25 * time.Hour) }
		c.Holder, c.Now = pki.NewHolder(must(c.CA.IssueHead()), ahead), ahead
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := Dial(ctx, late.addr, AsNode(node(t, late.ca, "n7", 1), late.ca.Pin))
	wants(t, err, fault.Denied, "refuses this machine's certificate", "expired")
}

// gRPC servers and connections are made in this package only, and nothing switches TLS off.
func TestNobodyElseMakesServers(t *testing.T) {
	root := "../../.."
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(err)
	}
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "bin" || d.Name() == "node_modules" || d.Name() == ".git" || d.Name() == "python" || d.Name() == "tools" || path == filepath.Join(root, "bench")) {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || filepath.Dir(path) == filepath.Join(root, "cluster/internal/rpc") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen++
		text := string(b)
		for _, bad := range []string{"grpc.NewServer(", "grpc.NewClient(", "grpc.Dial(", "grpc.DialContext(", "grpc.WithTransportCredentials(", "grpc/credentials"} {
			if strings.Contains(text, bad) {
				t.Errorf("%s has %s: package rpc makes servers and connections", path, bad)
			}
		}
		if strings.Contains(path, "cluster/internal/pki/") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, b, parser.ImportsOnly)
		if err != nil {
			return nil // not Go that is built
		}
		for _, i := range f.Imports {
			if strings.HasPrefix(path, filepath.Join(root, "cluster")+"/") && i.Path.Value == `"crypto/tls"` && strings.Contains(text, "InsecureSkipVerify") {
				t.Errorf("%s makes a TLS configuration of its own", path)
			}
		}
		return nil
	})
	if err != nil || seen < 100 {
		t.Errorf("%d files seen, %v", seen, err)
	}
}
