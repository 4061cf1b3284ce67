package parquetio

// Seeks implements driver.Seeker: pages before a row are passed over, not decoded. Where there is no
// offset index their bytes are read for it, which would be too much from a bucket.
func (t *table) Seeks(int) bool { return !t.Remote() }
