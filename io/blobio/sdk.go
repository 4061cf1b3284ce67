package blobio

import (
	"reflect"
	"strconv"
	"strings"

	"gocloud.dev/blob"
)

// sdk are types of the SDK below a driver, which cannot be named without linking the SDKs of all
// clouds. They are found through the types of the methods of its client; nil where there is none.
type sdk struct {
	client          reflect.Type // what Bucket.As takes
	list, get, copy reflect.Type // requests of s3, pointers
	object, folder  reflect.Type // what ListObject.As takes, of gs and azblob
}

func sdkOf(scheme string, b *blob.Bucket) (s sdk) {
	if servers[scheme].client == nil {
		return s
	}
	if s.client = typeAt(b, "b", "client"); s.client == nil {
		return s
	}
	switch scheme {
	case "s3":
		in := func(m reflect.Method, ok bool) reflect.Type {
			if !ok || m.Type.NumIn() < 3 {
				return nil
			}
			return m.Type.In(2)
		}
		s.list = in(s.client.MethodByName("ListObjectsV2"))
		s.get = in(s.client.MethodByName("GetObject"))
		s.copy = in(s.client.MethodByName("CopyObject"))
	case "gs":
		t := result(s.client.MethodByName("Bucket"))
		if t != nil {
			t = result(t.MethodByName("Object"))
		}
		if t != nil {
			t = result(t.MethodByName("Attrs"))
		}
		s.object = field(t)
		s.folder = s.object
	case "azblob":
		t := result(s.client.MethodByName("NewListBlobsHierarchyPager"))
		if t != nil {
			t = result(t.MethodByName("NextPage"))
		}
		page := field(t, "ListBlobsHierarchySegmentResponse", "Segment")
		s.object, s.folder = element(field(page, "BlobItems")), element(field(page, "BlobPrefixes"))
	}
	return s
}

// result is the type of what a method returns first.
func result(m reflect.Method, ok bool) reflect.Type {
	if !ok || m.Type.NumOut() == 0 {
		return nil
	}
	return m.Type.Out(0)
}

// field follows names of fields from t, and pointers to the last.
func field(t reflect.Type, names ...string) reflect.Type {
	for {
		for t != nil && t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t == nil || len(names) == 0 {
			return t
		}
		if t.Kind() != reflect.Struct {
			return nil
		}
		f, ok := t.FieldByName(names[0])
		if !ok {
			return nil
		}
		t, names = f.Type, names[1:]
	}
}

func element(t reflect.Type) reflect.Type {
	if t == nil || t.Kind() != reflect.Slice {
		return nil
	}
	return field(t.Elem())
}

// typeAt is the type of a field of v, reached by names of fields through what pointers and interfaces hold.
func typeAt(v any, names ...string) reflect.Type {
	at := reflect.ValueOf(v)
	for _, name := range names {
		for at.Kind() == reflect.Pointer || at.Kind() == reflect.Interface {
			at = at.Elem()
		}
		if at.Kind() != reflect.Struct {
			return nil
		}
		if at = at.FieldByName(name); !at.IsValid() {
			return nil
		}
	}
	return at.Type()
}

// about is what a listing or attributes of gs and azblob say of an object, or a folder, beyond what drivers do: the
// name as it is stored, "" if that is not to be had.
func (s *sdk) about(t reflect.Type, as func(any) bool) (name, version string) {
	if t == nil {
		return "", ""
	}
	p := reflect.New(t)
	if !as(p.Interface()) {
		return "", ""
	}
	v := p.Elem()
	text := func(names ...string) string {
		at := v
		for _, name := range names {
			if at = reflect.Indirect(at); at.Kind() != reflect.Struct {
				return ""
			}
			at = at.FieldByName(name)
		}
		switch at = reflect.Indirect(at); at.Kind() {
		case reflect.String:
			return at.String()
		case reflect.Int64:
			return strconv.FormatInt(at.Int(), 10)
		}
		return ""
	}
	if name = text("Name"); name == "" {
		name = text("Prefix")
	}
	if version = text("Generation"); version == "" || version == "0" {
		version = strings.Trim(text("Properties", "ETag"), `"`)
	}
	return name, version
}
