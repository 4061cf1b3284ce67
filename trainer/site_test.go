package trainer

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/cluster/gang/gangtest"
)

// Workers on several nodes know by which interface gloo is to be reached; what is set already stays.
func TestGlooInterface(t *testing.T) {
	several := &site{cfg: Config{Workers: 2, Gang: gangtest.New(t, 2)[1]}, node: 1}
	of := func(s *site, env ...string) (found []string) {
		for _, kv := range s.environ(env) {
			if strings.HasPrefix(kv, envGloo+"=") {
				found = append(found, kv)
			}
		}
		return found
	}
	lo := interfaceOf("127.0.0.1")
	if lo == "" || interfaceOf("::1%"+lo) != interfaceOf("::1") || interfaceOf("203.0.113.7") != "" || interfaceOf("node1.example.org") != "" {
		t.Fatalf("127.0.0.1 is of %q", lo)
	}
	if got := of(several, "A=b"); !slices.Equal(got, []string{envGloo + "=" + lo}) {
		t.Errorf("%q", got)
	}
	if got := of(several, envGloo+"=eth7"); !slices.Equal(got, []string{envGloo + "=eth7"}) {
		t.Errorf("%q", got)
	}
	if got := of(&site{cfg: Config{Workers: 2}}, "A=b"); got != nil {
		t.Errorf("on one machine: %q", got)
	}
}

// The person's key for records is not the workers'.
func TestWorkersHaveNoKey(t *testing.T) {
	s := &site{cfg: Config{Workers: 1, Env: []string{"PENSTOCK_RUN_KEY=again a secret"}}}
	if env := s.environ([]string{"A=b", "PENSTOCK_RUN_KEY=a secret of somebody"}); strings.Contains(strings.Join(env, "\n"), "secret") {
		t.Errorf("%q", env)
	}
}
