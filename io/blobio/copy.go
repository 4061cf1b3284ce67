package blobio

import (
	"context"
	"io"
)

// Copy makes dst an object with the contents of src, in the same bucket, visible
// whole or not at all; an object that is there is replaced. Remote buckets copy by themselves, the
// bytes do not pass through here. Retried; NotFound if there is no src.
func (b *Bucket) Copy(ctx context.Context, dst, src string) error {
	for _, key := range []string{dst, src} {
		if err := b.checkKey(key); err != nil {
			return err
		}
	}
	if b.root == "" {
		return b.tryFor(ctx, src, writePatience*b.o.Timeout, func(ctx context.Context) error { return b.copyRemote(ctx, dst, src) })
	}
	info, err := b.Stat(ctx, src)
	if err != nil {
		return err
	}
	r := b.Object(info, nil).Stream(ctx, 0, info.Size)
	defer r.Close()
	w, err := b.Create(ctx, dst, nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		w.Abort()
		return b.fail(ctx, src, err)
	}
	return w.Close()
}
