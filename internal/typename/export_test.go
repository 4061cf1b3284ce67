package typename

import "github.com/apache/arrow-go/v18/arrow"

// Simple are the names without parts.
func Simple() map[string]arrow.DataType { return simple }
