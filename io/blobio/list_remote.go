package blobio

import (
	"context"
	"encoding/hex"
	"iter"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/penstock-data/penstock/internal/fault"
	"gocloud.dev/blob"
)

const listPage = 1000 // the most that services give at once

func (b *Bucket) listRemote(ctx context.Context, prefix, delimiter string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		last, encoded := "", false
		for token := blob.FirstPageToken; len(token) > 0; {
			var page []*blob.ListObject
			err := b.try(ctx, prefix, func(ctx context.Context) error {
				p, next, err := b.remote.ListPage(ctx, token, listPage, b.listOptions(prefix, delimiter, encoded))
				if b.isUnwritable(err) && !encoded {
					encoded = true
					p, next, err = b.remote.ListPage(ctx, token, listPage, b.listOptions(prefix, delimiter, encoded))
				}
				if err != nil && b.scheme != "s3" && codeOf(err) == fault.NotFound { // S3 has a code for it
					err = noBucket{err}
				}
				if err == nil {
					page, token = p, next
				}
				return err
			})
			if err != nil {
				yield(Info{}, err)
				return
			}
			infos := make([]Info, 0, len(page))
			for _, lo := range page {
				info, err := b.listed(lo)
				if err == nil && encoded {
					info.Key, err = url.QueryUnescape(info.Key)
					err = b.wrap(prefix, err)
				}
				if err != nil {
					yield(Info{}, err)
					return
				}
				infos = append(infos, info)
			}
			// Services list in byte order of the keys they store; where the driver
			// escapes a character a key may move. Within a page that is put right.
			slices.SortFunc(infos, func(x, y Info) int { return strings.Compare(x.Key, y.Key) })
			for _, lo := range infos {
				if strings.HasSuffix(lo.Key, "/") != lo.Dir {
					continue // a directory marker
				}
				if lo.Key <= last {
					yield(Info{}, fault.New(fault.Unsupported, "the service does not list in byte order of keys: %q after %q", lo.Key, last).
						At(b.place(prefix)))
					return
				}
				last = lo.Key
				if !yield(lo, nil) {
					return
				}
			}
		}
	}
}

// listed is what a listing says of an object or a directory.
func (b *Bucket) listed(lo *blob.ListObject) (Info, error) {
	info := Info{Key: lo.Key, Dir: lo.IsDir}
	etag := ""
	// These are the only types of an SDK that are named here: their package holds nothing but types.
	var o types.Object
	var folder types.CommonPrefix
	switch {
	case b.scheme != "s3":
		t := b.sdk.object
		if lo.IsDir {
			t = b.sdk.folder
		}
		var name string
		if name, info.version = b.sdk.about(t, lo.As); name != "" {
			if err := b.reachable(name, info.Key); err != nil {
				return Info{}, err
			}
		}
	case lo.IsDir && lo.As(&folder) && folder.Prefix != nil:
		info.Key = *folder.Prefix
	case !lo.IsDir && lo.As(&o) && o.Key != nil:
		info.Key = *o.Key
		if o.ETag != nil {
			etag = *o.ETag
		}
	}
	if !lo.IsDir {
		info.Size, info.ModTime = lo.Size, lo.ModTime
		info.ETag = b.tag(etag, lo.MD5, lo.ModTime)
	}
	return info, nil
}

// tag is Info.ETag, from what both listings and attributes know.
func (b *Bucket) tag(etag string, md5 []byte, t time.Time) string {
	switch {
	case b.scheme == "s3" && etag != "":
		return strings.Trim(etag, `"`)
	case len(md5) > 0:
		return hex.EncodeToString(md5)
	}
	return "t" + strconv.FormatInt(t.UnixNano(), 16)
}
