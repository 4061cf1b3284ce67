package strict

import "testing"

func TestJSON(t *testing.T) {
	for in, ok := range map[string]bool{`{"a":1}`: true, `{}`: true, ` {} `: true, `{"b":1}`: false, `{} x`: false, `{} {}`: false, `[]`: false, ``: false, `{"a":"x"}`: false} {
		var v struct{ A int }
		if err := JSON("test", []byte(in), &v); (err == nil) != ok {
			t.Errorf("%s: %v", in, err)
		}
	}
}
