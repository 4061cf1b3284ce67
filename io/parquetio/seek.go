package parquetio

// Seeks implements driver.Seeker: pages before a row are passed over, not decoded.
func (t *table) Seeks(int) bool { return true }
