package blobio

import (
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/penstock-data/penstock/internal/fault"
	"gocloud.dev/blob"
)

// pin is the version of an object that the first answer had; all others must
// have the same.
type pin struct {
	mu  sync.Mutex
	tag string
}

// checkAnswer reports errChanged if r answers for another version than the one
// that was listed. What is compared, before a byte of the answer is used, beside
// the size:
//
//	s3      ETag of every answer with the ETag listed
//	gs      generation of every answer with that listed
//	azblob  ETag of every answer with that listed
//	mem     time of the last change, to the nanosecond
//	others  time of the last change, to the second
//
// Where gs or azblob list no version, the first answer's must be that of all others, and
// its time of the last change that of the listing (gs: not younger, a change of metadata counts there).
func (o *Object) checkAnswer(r *blob.Reader) error {
	if r.Size() < 0 {
		return fault.New(fault.Unsupported, "the service decompresses this object as it is read, so its size is not known: store it without Content-Encoding")
	}
	if r.Size() != o.info.Size {
		return errChanged
	}
	tag := answerTag(r)
	listed := o.info.version
	if o.b.scheme == "s3" {
		listed = o.info.ETag
	}
	if tag != "" && listed != "" {
		if tag != listed {
			return errChanged
		}
		return nil
	}
	if listed, now := o.info.ModTime, r.ModTime(); !listed.IsZero() && !now.IsZero() {
		switch later := now.Unix() - listed.Unix(); {
		case later > 0, later < 0 && o.b.scheme != "gs", o.b.scheme == "mem" && !now.Equal(listed):
			return errChanged
		}
	}
	if tag == "" {
		return nil
	}
	o.pin.mu.Lock()
	defer o.pin.mu.Unlock()
	if o.pin.tag == "" {
		o.pin.tag = tag
	}
	if o.pin.tag != tag {
		return errChanged
	}
	return nil
}

// answerTag finds the ETag or generation of an answer; "" if there is none.
// gocloud would give it by Reader.As, into types that cannot be named without
// linking the SDK of every cloud; so it is read where gocloud's drivers keep the
// answer, in a field "raw". Tests against servers prove that it is there.
func answerTag(r *blob.Reader) string {
	v := reflect.ValueOf(r).Elem().FieldByName("r")
	for _, name := range []string{"raw", "Attrs", "ETag", "Generation"} {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			break
		}
		if f := v.FieldByName(name); f.IsValid() {
			v = f
		} else if name == "raw" {
			return ""
		}
	}
	v = reflect.Indirect(v)
	switch v.Kind() {
	case reflect.String:
		return strings.Trim(v.String(), `"`)
	case reflect.Int64:
		return fmt.Sprint(v.Int())
	}
	return ""
}
