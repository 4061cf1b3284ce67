package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Who speaks another protocol, or says none, is refused with a word, by every method and whoever it is, and before its token is looked at.
func TestOtherProtocols(t *testing.T) {
	h := start(t)
	srv := must(NewServer(ServerConfig{CA: h.ca, Holder: h.holder, Tokens: h.store, Log: h.srv.log}, bare))
	defer srv.Stop(context.Background())
	h.addr = must(srv.ListenTLS("127.0.0.1:0")).String()
	h.sock += "2"
	if err := srv.ListenUnix(h.sock); err != nil {
		t.Fatal(err)
	}
	this := fmt.Sprint(Protocol)
	wrong := h.token("wrong", Admin)
	h.store.set("wrong", func(r *Record) { r.Hash[5] ^= 1 })
	for name, c := range map[string]Creds{
		"newcomer": AsNewcomer(h.ca.Pin()), "node": AsNode(node(t, h.ca, "n7", 1), h.ca.Pin), "person": AsPerson(h.token("a", Admin)), "wrong token": AsPerson(wrong), "socket": AtSocket(),
	} {
		conn := h.dial(c)
		for _, x := range []struct {
			say    []string // what the header says
			number string   // as the refusal has it
			update string
		}{
			{[]string{fmt.Sprint(Protocol - 1)}, fmt.Sprint(Protocol - 1), "caller's machine"},
			{[]string{fmt.Sprint(Protocol + 1)}, fmt.Sprint(Protocol + 1), "head's machine"},
			{nil, "0 (it says none", "caller's machine"},
			{[]string{""}, "0 (it says none", "caller's machine"},
			{[]string{"x" + strings.Repeat("y", 1000)}, `"xyyy`, "caller's machine"},
			{[]string{this, this}, this + "," + this, "caller's machine"},
		} {
			for _, m := range append(methods(), method{"/penstock.cluster.v1.Control/Later", methods()[0].desc}) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				for _, v := range x.say {
					ctx = metadata.AppendToOutgoingContext(ctx, protocolKey, v)
				}
				err := call(ctx, conn.cc, m) // without the number that Conn gives
				cancel()
				if code := status.Code(err); code != codes.FailedPrecondition {
					t.Fatalf("%s: %s with %.40q: %v (%v)", name, m.full, x.say, err, code)
				}
				if name != "wrong token" || m.full == methods()[0].full {
					wants(t, fromStatus(ctx, conn.addr, err), fault.Unsupported, x.number, "the head protocol "+this, x.update, "penstock version")
				}
			}
		}
	}
	if h.store.asks != 0 {
		t.Errorf("%d tokens were looked up", h.store.asks)
	}
	for _, c := range []Creds{AsNewcomer(h.ca.Pin()), AsNode(node(t, h.ca, "n7", 1), h.ca.Pin), AsPerson(h.token("a", Admin)), AtSocket()} {
		conn := h.dial(c.WithProtocol(Protocol + 5))
		for _, m := range methods() {
			wants(t, call(t.Context(), conn, m), fault.Unsupported, fmt.Sprintf("protocol %d", Protocol+5), "head's machine")
		}
	}
	// It is not held against anybody: no token was wrong.
	wants(t, call(t.Context(), h.dial(AsPerson(wrong)), methods()[3]), fault.Denied, "does not know")
}
