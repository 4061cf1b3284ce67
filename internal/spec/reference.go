package spec

import (
	"fmt"
	"reflect"
	"strings"
)

// Reference is the list of all keys as Markdown: the second half of docs/spec.md.
func Reference() []byte {
	var b strings.Builder
	seen := map[reflect.Type]bool{}
	var queue []reflect.Type
	want := func(t reflect.Type) reflect.Type {
		for t.Kind() == reflect.Pointer || (t.Kind() == reflect.Slice || t.Kind() == reflect.Map) && t != orderedType && t != rawType {
			t = t.Elem()
		}
		if t.Kind() == reflect.Struct && t.Name() != "" && t != allOrType && !seen[t] {
			seen[t] = true
			queue = append(queue, t)
		}
		return t
	}
	want(reflect.TypeFor[Spec]())
	for len(queue) > 0 {
		t := queue[0]
		queue = queue[1:]
		fs, oneof := fieldsOf(t)
		fmt.Fprintf(&b, "\n### %s\n\n", title(t))
		if oneof {
			b.WriteString("Exactly one of these keys")
			if _, ok := t.FieldByName("OnError"); ok {
				b.WriteString(", and `on_error` if wanted")
			}
			b.WriteString(".\n\n")
		}
		if key := scalarKey(t); key != "" {
			fmt.Fprintf(&b, "Or text: the value of `%s`.\n\n", key)
		}
		b.WriteString("| key | value | |\n|---|---|---|\n")
		for _, f := range fs {
			doc := f.doc
			if f.required {
				doc += " (needed)"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.name, valueName(f, want(f.typ)), strings.ReplaceAll(doc, "|", `\|`))
		}
	}
	return []byte(b.String())
}

// title is the heading of a type's table, and what other tables link to.
func title(t reflect.Type) string {
	name := strings.ToLower(t.Name())
	if pkg := t.PkgPath(); pkg != reflect.TypeFor[Spec]().PkgPath() {
		return strings.TrimSuffix(pkg[strings.LastIndex(pkg, "/")+1:], "io") + " source"
	}
	if kind, ok := strings.CutSuffix(name, "sink"); ok && kind != "" {
		return kind + " sink"
	}
	return name
}

func valueName(f field, t reflect.Type) string {
	list := ""
	ft := f.typ
	for ft.Kind() == reflect.Pointer {
		ft = ft.Elem()
	}
	if ft.Kind() == reflect.Slice && ft != orderedType && ft != rawType {
		list = "list of "
	}
	if ft.Kind() == reflect.Map {
		list = "mapping of "
	}
	switch {
	case f.enum != "":
		return strings.ReplaceAll(f.enum, "|", ", ")
	case t == orderedType:
		return "mapping of text"
	case t == sizeType:
		return "size"
	case t == durationType:
		return "duration"
	case t == rawType:
		return list + "anything"
	case t == allOrType:
		return "true, list of text"
	}
	switch t.Kind() {
	case reflect.Struct:
		if t.Name() == "" {
			return "{}"
		}
		return list + fmt.Sprintf("[%s](#%s)", title(t), strings.ReplaceAll(title(t), " ", "-"))
	case reflect.String:
		return list + "text"
	case reflect.Bool:
		return "true, false"
	}
	return list + "number"
}
