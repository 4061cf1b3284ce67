package cluster

import (
	"context"
	"slices"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pb"
)

// Authority is one that the cluster believes, or that tokens name. Its key signs the certificates
// of the head, of nodes and of processes (docs/cluster.md, "Rotating the authority").
type Authority struct {
	Pin    string    // SHA-256 of its certificate, as tokens have it
	State  string    // issues; ends: it is being replaced; replaced: believed no more, and tokens name it
	Begins time.Time // of its certificate, also Ends; of one that is replaced neither is known
	Ends   time.Time
	Nodes  []string // ids of those with a certificate of it
	Tokens []string // ids of those that could be used and name it
}

// Authorities says how the authorities of the cluster stand, the one that issues first.
func (c *Client) Authorities(ctx context.Context) ([]Authority, error) {
	return authoritiesOf(c.c.Authorities(ctx, &pb.Empty{}))
}

// RotateAuthority begins to replace the authority: another one issues from now on, nodes get new
// certificates at once, and the one before is believed until FinishAuthority. Its key is destroyed.
func (c *Client) RotateAuthority(ctx context.Context) ([]Authority, error) {
	return authoritiesOf(c.c.RotateAuthority(ctx, &pb.Empty{}))
}

// FinishAuthority ends what RotateAuthority began: the authority before is believed no more, nor
// are certificates of it and tokens that name it. Where nodes have such certificates it is refused,
// with their names, unless force is set: they join again. It returns how the authorities stood
// before.
func (c *Client) FinishAuthority(ctx context.Context, force bool) ([]Authority, error) {
	return authoritiesOf(c.c.FinishAuthority(ctx, &pb.FinishAuthorityRequest{Force: force}))
}

func authoritiesOf(x *pb.AuthorityList, err error) ([]Authority, error) {
	if err != nil {
		return nil, err
	}
	var as []Authority
	for _, a := range x.GetAuthorities() {
		as = append(as, Authority{a.GetPin(), a.GetState(), timeOf(a.GetBeginsUnixNanos()), timeOf(a.GetEndsUnixNanos()), slices.Clone(a.GetNodes()), slices.Clone(a.GetTokens())})
	}
	return as, nil
}
