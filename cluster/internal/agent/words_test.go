package agent

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
)

// Whatever processes say at their end, and however many end while the head is away: a hello names
// all of them, and goes into a message.
func TestHelloHasRoom(t *testing.T) {
	hello := &pb.Hello{}
	for i := range 10_000 {
		x := &pb.Exited{Process: fmt.Sprintf("j%d/1/0/abcdefghij", i), Text: short(strings.Repeat("ä\xff", 20<<10), mostWords)}
		for range mostAt {
			x.At = append(x.At, short(strings.Repeat("ä", 600), mostPlace))
		}
		hello.Exited = append(hello.Exited, x)
		hello.Running = append(hello.Running, fmt.Sprintf("j%d/1/1/abcdefghij", i))
	}
	fit(hello.Exited)
	b, err := proto.Marshal(hello)
	if err != nil || len(b) > rpc.DefaultLimits.Message {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if first := hello.Exited[0]; len(first.Text) < 8<<10 || len(first.At) != mostAt {
		t.Errorf("the first has %d bytes, and %d places", len(first.Text), len(first.At))
	}
}
