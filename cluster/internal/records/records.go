// Package records keeps what is durable of a cluster, in etcd.
package records

import (
	_ "go.etcd.io/etcd/client/v3"
	_ "go.etcd.io/etcd/server/v3/embed"
)
