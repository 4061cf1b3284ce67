package blobio

import (
	"context"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
	"gocloud.dev/blob"
)

// Drivers store a key that has certain characters under another name, in which each of them is
// __0xNN__, and show such names as the key again. So what others stored under a name with such a
// character, or under one with __0xNN__, would be listed and then not found, or would be shown
// under a wrong name. Here a key of s3 is the stored name, always: it is put into the requests of
// the driver. On other services a stored name that no key becomes is an error of the listing.

var escapeRE = regexp.MustCompile(`^__0x[0-9a-fA-F]+__`)

// escaped are the characters, and what else, that the driver of a scheme stores as __0xNN__.
var escaped = map[string]func(key string, i int) bool{
	"s3": func(key string, i int) bool { return key[i] < ' ' || afterDots(key, i) },
	"gs": func(key string, i int) bool { return key[i] == '\n' || key[i] == '\r' || afterDots(key, i) },
	"azblob": func(key string, i int) bool {
		return key[i] < ' ' || strings.IndexByte("\\\"#%?\x7f", key[i]) >= 0 || afterDots(key, i)
	},
}

func afterDots(key string, i int) bool { return key[i] == '/' && strings.HasSuffix(key[:i], "..") }

// stored is the name under which the driver of a scheme stores a key, or a prefix.
func stored(scheme, key string) string {
	is := escaped[scheme]
	if is == nil {
		return key
	}
	var name strings.Builder
	for i := range len(key) {
		if is(key, i) || key[i] == '_' && escapeRE.MatchString(key[i:]) {
			fmt.Fprintf(&name, "__%#x__", key[i])
		} else {
			name.WriteByte(key[i])
		}
	}
	return name.String()
}

// ownName reports that a key is of s3 and that the driver would store it under another name.
func (b *Bucket) ownName(key string) bool { return b.scheme == "s3" && stored("s3", key) != key }

// reachable is an error if what is stored as name is not what a driver asks for with key, its form of name.
func (b *Bucket) reachable(name, key string) error {
	if stored(b.scheme, key) == name {
		return nil
	}
	return fault.New(fault.Unsupported, "the service has an object named %q, a name that cannot be asked for here: "+
		"give the object another name, or name paths that do not hold it", name).At(b.place(key))
}

// sets is a hook of a driver that sets fields of the request that it is about to send, of type in.
func sets(in reflect.Type, fields map[string]string) func(as func(any) bool) error {
	return func(as func(any) bool) error {
		p := reflect.Value{}
		if in != nil {
			p = reflect.New(in)
		}
		if in == nil || !as(p.Interface()) {
			return fault.New(fault.Unsupported, "a key with characters as %q has cannot be asked for with the parameters of this bucket's URL", fields)
		}
		for name, v := range fields {
			if f := p.Elem().Elem().FieldByName(name); f.Kind() == reflect.String {
				f.SetString(v)
			} else {
				f.Set(reflect.ValueOf(&v))
			}
		}
		return nil
	}
}

func (b *Bucket) readOptions(key string) *blob.ReaderOptions {
	if !b.ownName(key) {
		return nil
	}
	return &blob.ReaderOptions{BeforeRead: sets(b.sdk.get, map[string]string{"Key": key})}
}

// listOptions, where encoded, ask for keys with percent signs: XML has no form for most control characters.
func (b *Bucket) listOptions(prefix, delimiter string, encoded bool) *blob.ListOptions {
	o := &blob.ListOptions{Prefix: prefix, Delimiter: delimiter}
	switch {
	case encoded:
		o.BeforeList = sets(b.sdk.list, map[string]string{"Prefix": prefix, "EncodingType": "url"})
	case b.ownName(prefix):
		o.BeforeList = sets(b.sdk.list, map[string]string{"Prefix": prefix})
	}
	return o
}

// isUnwritable reports that a listing of S3 has a key that XML cannot hold.
func (b *Bucket) isUnwritable(err error) bool {
	return b.scheme == "s3" && err != nil && strings.Contains(err.Error(), "illegal character code")
}

func (b *Bucket) writeOptions(ctx context.Context, key string, o *PutOptions) (*blob.WriterOptions, error) {
	w := &blob.WriterOptions{ContentType: o.ContentType, IfNotExist: o.IfNotExist, BufferSize: partSize(o.Size)}
	if !b.ownName(key) {
		return w, nil
	}
	// The type of the request is to be had from a writer only. This one writes nothing: its context has ended.
	ended, end := context.WithCancel(ctx)
	end()
	probe, err := b.remote.NewWriter(ended, key, w)
	if err != nil {
		return nil, err
	}
	req := typeAt(probe, "w", "req")
	_ = probe.Close()
	if req == nil {
		return nil, fault.New(fault.Unsupported, "the key %q cannot be written", key)
	}
	w.BeforeWrite = sets(req, map[string]string{"Key": key})
	return w, nil
}

// attributes are those of an object as a listing has them.
func (b *Bucket) attributes(ctx context.Context, key string) (Info, error) {
	if b.ownName(key) {
		out, err := b.askS3(ctx, key, func(client reflect.Value) reflect.Value { return client.MethodByName("HeadObject") })
		if err != nil {
			return Info{}, err
		}
		info := Info{Key: key}
		get(out, "ContentLength", &info.Size)
		get(out, "LastModified", &info.ModTime)
		etag := ""
		get(out, "ETag", &etag)
		info.ETag = b.tag(etag, nil, info.ModTime)
		return info, nil
	}
	a, err := b.remote.Attributes(ctx, key)
	if err != nil {
		return Info{}, err
	}
	info := Info{Key: key, Size: a.Size, ModTime: a.ModTime, ETag: b.tag(a.ETag, a.MD5, a.ModTime)}
	switch b.scheme {
	case "gs":
		_, info.version = b.sdk.about(b.sdk.object, a.As)
	case "azblob":
		info.version = strings.Trim(a.ETag, `"`)
	}
	return info, nil
}

// get copies what a field of an answer points to, if it points to anything.
func get[T any](answer reflect.Value, field string, to *T) {
	if p, ok := answer.FieldByName(field).Interface().(*T); ok && p != nil {
		*to = *p
	}
}

// askS3 sends a request about the object that is stored as key.
func (b *Bucket) askS3(ctx context.Context, key string, method func(client reflect.Value) reflect.Value) (reflect.Value, error) {
	if b.sdk.client == nil {
		return reflect.Value{}, fault.New(fault.Unsupported, "the key %q cannot be asked for", key)
	}
	client := reflect.New(b.sdk.client)
	b.remote.As(client.Interface())
	f := method(client.Elem())
	in := reflect.New(f.Type().In(1).Elem())
	name := b.host()
	in.Elem().FieldByName("Bucket").Set(reflect.ValueOf(&name))
	in.Elem().FieldByName("Key").Set(reflect.ValueOf(&key))
	out := f.Call([]reflect.Value{reflect.ValueOf(ctx), in})
	if err, _ := out[1].Interface().(error); err != nil {
		return reflect.Value{}, err
	}
	return out[0].Elem(), nil
}

func (b *Bucket) deleteRemote(ctx context.Context, key string) error {
	if b.ownName(key) {
		_, err := b.askS3(ctx, key, func(client reflect.Value) reflect.Value { return client.MethodByName("DeleteObject") })
		return err
	}
	return b.remote.Delete(ctx, key)
}

func (b *Bucket) copyRemote(ctx context.Context, dst, src string) error {
	o := &blob.CopyOptions{}
	if b.ownName(dst) || b.ownName(src) {
		o.BeforeCopy = sets(b.sdk.copy, map[string]string{"Key": dst, "CopySource": url.QueryEscape(b.host() + "/" + src)})
	}
	return b.remote.Copy(ctx, dst, src, o)
}

// host is the bucket's name.
func (b *Bucket) host() string {
	return strings.TrimSuffix(strings.TrimPrefix(b.base, b.scheme+"://"), "/")
}
