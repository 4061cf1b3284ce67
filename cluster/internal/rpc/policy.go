package rpc

import (
	"fmt"
	"slices"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
	"google.golang.org/grpc"
)

// Scope is what an access token is good for; each includes those before it.
type Scope uint8

const (
	None   Scope = iota
	Read         // see the cluster, its jobs and their logs
	Submit       // and run jobs, which is to run code as the user of the agents
	Admin        // and drain and end nodes, and make tokens
)

var scopes = [...]string{"none", "read", "submit", "admin"}

func (s Scope) String() string { return scopes[s] }

// ParseScope reads read, submit or admin.
func ParseScope(s string) (Scope, error) {
	for i := Read; i <= Admin; i++ {
		if scopes[i] == s {
			return i, nil
		}
	}
	return None, fault.New(fault.Invalid, "%.40q is no scope: there are read, submit and admin", s)
}

// policy is who may call a method.
type policy struct {
	kind  Kind  // Newcomer, Node or Person
	scope Scope // of a Person, at least
}

var (
	newcomers = policy{kind: Newcomer}
	nodes     = policy{kind: Node}
	readers   = policy{kind: Person, scope: Read}
	submitter = policy{kind: Person, scope: Submit}
	admins    = policy{kind: Person, scope: Admin}
)

// policies has every method that a head may serve. What is not here is nobody's.
var policies = map[string]policy{
	pb.Join_Join_FullMethodName: newcomers,

	pb.Node_Attach_FullMethodName: nodes,
	pb.Node_Renew_FullMethodName:  nodes,
	pb.Node_Pack_FullMethodName:   nodes,

	pb.Control_Watch_FullMethodName: readers,
	pb.Control_Jobs_FullMethodName:  readers,
	pb.Control_Logs_FullMethodName:  readers,

	pb.Control_HasPack_FullMethodName: submitter,
	pb.Control_PutPack_FullMethodName: submitter,
	pb.Control_Submit_FullMethodName:  submitter,
	pb.Control_StopJob_FullMethodName: submitter,

	pb.Control_Drain_FullMethodName:       admins,
	pb.Control_Undrain_FullMethodName:     admins,
	pb.Control_Shutdown_FullMethodName:    admins,
	pb.Control_CreateToken_FullMethodName: admins,
	pb.Control_ListTokens_FullMethodName:  admins,
	pb.Control_RevokeToken_FullMethodName: admins,

	pb.Control_Authorities_FullMethodName:     admins,
	pb.Control_RotateAuthority_FullMethodName: admins,
	pb.Control_FinishAuthority_FullMethodName: admins,

	pb.Control_Audit_FullMethodName:       admins,
	pb.Control_SetQuota_FullMethodName:    admins,
	pb.Control_ListQuotas_FullMethodName:  admins,
	pb.Control_RemoveQuota_FullMethodName: admins,
}

// audits says of every method whether what it does is on record, with who called it
// ([ServerConfig.Refused] has what it did not do). Calls that are denied are, of all methods.
var audits = map[string]bool{
	pb.Join_Join_FullMethodName: true,

	pb.Node_Attach_FullMethodName: false,
	pb.Node_Renew_FullMethodName:  false,
	pb.Node_Pack_FullMethodName:   false,

	pb.Control_Watch_FullMethodName:      false,
	pb.Control_Jobs_FullMethodName:       false,
	pb.Control_Logs_FullMethodName:       false,
	pb.Control_ListTokens_FullMethodName: false,
	pb.Control_ListQuotas_FullMethodName: false,
	pb.Control_Audit_FullMethodName:      false,
	pb.Control_HasPack_FullMethodName:    false,
	pb.Control_PutPack_FullMethodName:    false, // the job that has it is

	pb.Control_Submit_FullMethodName:      true,
	pb.Control_StopJob_FullMethodName:     true,
	pb.Control_Drain_FullMethodName:       true,
	pb.Control_Undrain_FullMethodName:     true,
	pb.Control_Shutdown_FullMethodName:    true,
	pb.Control_CreateToken_FullMethodName: true,
	pb.Control_RevokeToken_FullMethodName: true,
	pb.Control_SetQuota_FullMethodName:    true,
	pb.Control_RemoveQuota_FullMethodName: true,

	pb.Control_Authorities_FullMethodName:     false,
	pb.Control_RotateAuthority_FullMethodName: true,
	pb.Control_FinishAuthority_FullMethodName: true,
}

// Audited are the methods whose handlers write an entry when they do what was asked.
func Audited() []string {
	var all []string
	for m, is := range audits {
		if is {
			all = append(all, m)
		}
	}
	slices.Sort(all)
	return all
}

// admits says nothing where p may call, and else why not.
func (a policy) admits(p Peer) error {
	switch {
	case a.kind == Person && p.Kind == Local:
		return nil
	case a.kind == Person && p.Kind == Person:
		if p.Scope >= a.scope {
			return nil
		}
		return fault.New(fault.Denied, "this needs an access token of scope %s; token %s has %s", a.scope, p.Token, p.Scope)
	case a.kind == p.Kind:
		return nil
	case a.kind == Person:
		return fault.New(fault.Denied, "this is for people: it needs an access token (penstock token create), or the socket on the head's machine")
	case a.kind == Node:
		return fault.New(fault.Denied, "this is for nodes: it needs a node's certificate (penstock join)")
	}
	return fault.New(fault.Denied, "this is for those who have no certificate and no access token yet")
}

// check refuses services with a method that has no policy.
func check(services map[string]grpc.ServiceInfo) error {
	for service, info := range services {
		for _, m := range info.Methods {
			if full := "/" + service + "/" + m.Name; policies[full].kind == Nobody {
				return fault.New(fault.Internal, "%s has no policy: say in cluster/internal/rpc who may call it", full)
			} else if _, said := audits[full]; !said {
				return fault.New(fault.Internal, "%s has no line in audits: say in cluster/internal/rpc whether what it does is on record", full)
			}
		}
	}
	return nil
}

// Kind is how a peer proved who it is.
type Kind uint8

const (
	Nobody   Kind = iota // not judged: may nothing
	Newcomer             // TLS, and shows nothing
	Node                 // a node's certificate
	Person               // an access token
	Local                // the unix socket, as the head's user or root
)

// Peer is who calls.
type Peer struct {
	Kind    Kind
	Node    pki.Identity // of a Node
	Token   string       // id, of a Person
	Owner   string       // of the token: whose jobs are those that it submits
	Project string       // of the token: the only one that it is for; "": all
	Scope   Scope        // of a Person; Admin for Local
	UID     int          // of Local
	Host    string       // address without its port; "" for Local and within the process
	Here    string       // the head's address of the connection, likewise
}

// String is for logs: "node n7 at 10.0.0.7".
func (p Peer) String() string {
	who := [...]string{"nobody", "newcomer", "node " + p.Node.Node, "token " + p.Token, fmt.Sprintf("user %d", p.UID)}[p.Kind]
	if p.Host != "" {
		who += " at " + p.Host
	}
	return who
}
