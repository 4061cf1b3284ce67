package expr

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
)

// What a message says to use can be used as it stands.
func TestHintsCanBeUsed(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "fare", Type: arrow.PrimitiveTypes.Float64, Nullable: true}, {Name: "name", Type: arrow.BinaryTypes.String, Nullable: true}}, nil)
	for text, use := range map[string]string{
		`fare + "x"`: `string(fare) + "x"`, `"x" + fare`: `"x" + string(fare)`, `fare + "1.5"`: "fare + 1.5", `" 2" * fare`: "2 * fare", `name * fare`: "double(name) * fare", `name * name`: "double(name) * double(name)",
		`int32(fare)`: `cast(fare, "int32")`, `float64(fare + 1)`: `cast(fare + 1, "float64")`, `abs(int8(name))`: `cast(name, "int8")`, `fare * "x"`: "", `"x" - fare`: "",
	} {
		e, err := Parse(text)
		if err == nil {
			_, err = e.Bind(schema, 0)
		}
		if err == nil {
			t.Errorf("%s is fine", text)
			continue
		}
		msg, _, _ := strings.Cut(err.Error(), "\n")
		_, got, _ := strings.Cut(msg, ": use ")
		if got = strings.TrimSuffix(got, " to join texts"); got != use {
			t.Errorf("%s: %s, want to use %s", text, msg, use)
		}
		if use == "" {
			if !strings.HasSuffix(msg, ": that text is no number") {
				t.Errorf("%s: %s", text, msg)
			}
			continue
		}
		if e, err = Parse(got); err == nil {
			_, err = e.Bind(schema, 0)
		}
		if err != nil {
			t.Errorf("%s: use %s: %v", text, got, err)
		}
	}
}
