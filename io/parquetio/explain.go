package parquetio

// ReadBy is what explain says of the decoder: there is one for all files and types.
func (t *table) ReadBy() string { return "native decoder" }
