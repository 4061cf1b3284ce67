package spec

import (
	"cmp"
	"encoding/json"
	"reflect"
	"strings"
)

// JSONSchema describes the format for editors and other tools (JSON Schema
// 2020-12). It is published as docs/spec.schema.json.
func JSONSchema() []byte {
	g := &generator{defs: map[string]any{}}
	root := g.of(reflect.TypeFor[Spec]()).(map[string]any)
	root = g.defs[strings.TrimPrefix(root["$ref"].(string), "#/$defs/")].(map[string]any)
	delete(g.defs, "Spec")
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Penstock pipeline spec"
	root["$defs"] = g.defs
	b, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(err) // maps of strings: cannot fail
	}
	return append(b, '\n')
}

type generator struct{ defs map[string]any }

// reference is a pattern of text whose value is known only when the spec is read.
const reference = `\$\{(env|file):`

// scalar is a value of the given types, or of text of the pattern; "" is none but a reference.
func scalar(pattern string, types ...string) map[string]any {
	if pattern != "" {
		pattern += "|"
	}
	return map[string]any{"type": append(types, "string"), "pattern": pattern + reference}
}

// of describes what checker.decode takes for t: all of it, and little else.
func (g *generator) of(t reflect.Type) any {
	switch t {
	case orderedType:
		return map[string]any{"type": "object", "additionalProperties": g.of(reflect.TypeFor[string]())}
	case sizeType:
		s := scalar(`^[0-9._]+\s*([KkMmGgTt]([Ii]?[Bb]|[Ii])?|[Bb])?\s*$`, "integer")
		s["minimum"] = 0
		return s
	case durationType:
		s := scalar(`^[-+]?(0|([0-9.]+(ns|us|µs|μs|ms|s|m|h))+)$`, "integer")
		s["minimum"], s["maximum"] = 0, 0 // the one that needs no unit
		return s
	case allOrType:
		return map[string]any{"anyOf": []any{g.of(reflect.TypeFor[bool]()), g.of(reflect.TypeFor[[]string]())}}
	case rawType:
		return map[string]any{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.of(t.Elem())
	case reflect.Struct:
		return g.object(t)
	case reflect.Slice:
		return map[string]any{"type": "array", "items": g.of(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": g.of(t.Elem())}
	case reflect.String:
		return map[string]any{"type": []string{"string", "number", "boolean"}}
	case reflect.Bool:
		return scalar("", "boolean")
	case reflect.Float32, reflect.Float64:
		return scalar("", "number")
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		s := scalar(`^[0-9][0-9a-fA-FxXoO_]*$`, "integer")
		s["minimum"] = 0
		return s
	}
	return scalar(`^[-+]?[0-9][0-9a-fA-FxXoO_]*$`, "integer")
}

func (g *generator) object(t reflect.Type) any {
	name := t.Name()
	if pkg := t.PkgPath(); pkg != reflect.TypeFor[Spec]().PkgPath() && pkg != "" {
		name = pkg[strings.LastIndex(pkg, "/")+1:] + "." + name
	}
	if name == "" {
		return map[string]any{"type": []string{"object", "null"}, "additionalProperties": false}
	}
	ref := map[string]any{"$ref": "#/$defs/" + name}
	if _, ok := g.defs[name]; ok {
		return ref
	}
	def := map[string]any{}
	g.defs[name] = def // before the fields: types may refer to themselves
	fs, oneof := fieldsOf(t)
	props := map[string]any{}
	var required []string
	var choices []any
	var short map[string]any // the scalar that may stand for the object
	for _, f := range fs {
		p := g.of(f.typ).(map[string]any)
		if f.doc != "" || f.enum != "" {
			p = cloneMap(p)
		}
		if f.doc != "" {
			p["description"] = f.doc
		}
		if f.enum != "" {
			delete(p, "type")
			var words []any
			for _, w := range strings.Split(f.enum, "|") {
				words = append(words, w)
				if w == "null" { // without quotes, too
					words = append(words, nil)
				}
			}
			p["anyOf"] = []any{map[string]any{"enum": words}, scalar("")}
		}
		if least := cmp.Or(f.min, f.least); least != nil {
			p["minimum"] = *least
		}
		if f.most != nil {
			p["maximum"] = *f.most
		}
		if f.name == scalarKey(t) {
			short = map[string]any{"anyOf": p["anyOf"], "description": f.doc}
		}
		props[f.name] = p
		if f.required {
			required = append(required, f.name)
		}
		if f.name != "on_error" {
			choices = append(choices, map[string]any{"required": []string{f.name}})
		}
	}
	full := def
	if short != nil {
		full = map[string]any{}
		def["anyOf"] = []any{short, full}
	}
	full["type"] = "object"
	if required == nil && !oneof {
		full["type"] = []string{"object", "null"}
	}
	full["properties"] = props
	full["additionalProperties"] = false
	if required != nil {
		full["required"] = required
	}
	if oneof {
		full["oneOf"] = choices
	}
	return ref
}

func cloneMap(m map[string]any) map[string]any {
	c := make(map[string]any, len(m)+1)
	for k, v := range m {
		c[k] = v
	}
	return c
}
