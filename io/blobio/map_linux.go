package blobio

import "golang.org/x/sys/unix"

// mapFlags has the pages mapped at once: as fast as one fault in sixteen pages where the
// file is in memory, and what is not is read in large pieces.
const mapFlags = unix.MAP_POPULATE
