package main

import (
	"strings"
	"testing"
)

// The summary comes last and bare, however the log was cut; nothing is lost, and nothing else is moved.
func TestLastLine(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"node 0 | a\nnode 0 | {\"rows\":1}\nnode 1 | b\n", "node 0 | a\nnode 1 | b\n{\"rows\":1}\n"},
		{"{\"rows\":1}\nlate warning\n", "late warning\n{\"rows\":1}\n"},
		{"node 0 | {\"rows\":1}\npenstock: attempt 2\nnode 0 | {\"rows\":2}\nx\n", "penstock: attempt 2\nnode 0 | {\"rows\":1}\nx\n{\"rows\":2}\n"},
		{"node 1 | {\"rows\":1}\nnode 0 | {no\nhalf", "node 1 | {\"rows\":1}\nnode 0 | {no\nhalf"},
		{"", ""},
	} {
		for _, size := range []int{1, 7, 1000} {
			var got strings.Builder
			l := &lastLine{out: &got}
			for s := c.in; s != ""; {
				n := min(size, len(s))
				if _, err := l.Write([]byte(s[:n])); err != nil {
					t.Fatal(err)
				}
				s = s[n:]
			}
			if err := l.end(); err != nil || got.String() != c.want {
				t.Errorf("%q in pieces of %d: %q, %v, want %q", c.in, size, got.String(), err, c.want)
			}
		}
	}
	var got strings.Builder
	l := &lastLine{out: &got}
	if _, err := l.Write([]byte(strings.Repeat("x", mostPart))); err != nil || got.Len() != mostPart {
		t.Errorf("%d, %v", got.Len(), err)
	}
}
