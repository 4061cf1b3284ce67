package blobio

import (
	"context"
	"encoding/hex"
	"iter"
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
		opts := &blob.ListOptions{Prefix: prefix, Delimiter: delimiter}
		last := ""
		for token := blob.FirstPageToken; len(token) > 0; {
			var page []*blob.ListObject
			err := b.try(ctx, prefix, func(ctx context.Context) error {
				p, next, err := b.remote.ListPage(ctx, token, listPage, opts)
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
			// Services list in byte order of the keys they store; where the driver
			// escapes a character ("../", control characters) a key may move. Within
			// a page that is put right.
			slices.SortFunc(page, func(x, y *blob.ListObject) int { return strings.Compare(x.Key, y.Key) })
			for _, lo := range page {
				if strings.HasSuffix(lo.Key, "/") != lo.IsDir {
					continue // a directory marker
				}
				if lo.Key <= last {
					yield(Info{}, fault.New(fault.Unsupported, "the service does not list in byte order of keys: %q after %q", lo.Key, last).
						At(b.place(prefix)))
					return
				}
				last = lo.Key
				info := Info{Key: lo.Key, Dir: lo.IsDir}
				if !lo.IsDir {
					info.Size, info.ModTime = lo.Size, lo.ModTime
					// This is the one type of an SDK that is named here: its package holds
					// nothing but types.
					var o types.Object
					etag := ""
					if b.scheme == "s3" && lo.As(&o) && o.ETag != nil {
						etag = *o.ETag
					}
					info.ETag = b.tag(etag, lo.MD5, lo.ModTime)
				}
				if !yield(info, nil) {
					return
				}
			}
		}
	}
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
