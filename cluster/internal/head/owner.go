package head

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

// ownerOf is the form of names of owners and projects. They have no colon and no slash: those of
// users do, and the names of jobs that are of a project.
var ownerOf = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$`)

// by is who submitted a job: it belongs to the owner.
type by struct {
	Owner   string // of the token, or uid:NUMBER of a user of the head's machine
	Token   string `json:",omitempty"` // id; "": at the socket
	Project string `json:",omitempty"`
	Free    bool   `json:",omitempty"` // an administrator: no quota of an owner counts
}

// byPeer is whose jobs are those that p submits.
func byPeer(p rpc.Peer) by {
	if p.Kind == rpc.Local {
		return by{Owner: "uid:" + strconv.Itoa(p.UID), Free: true}
	}
	return by{Owner: p.Owner, Token: p.Token, Project: p.Project, Free: administers(p)}
}

// administers says whether p may change what is others'.
func administers(p rpc.Peer) bool {
	return p.Kind == rpc.Local || p.Kind == rpc.Person && p.Scope >= rpc.Admin && p.Project == ""
}

// sees reports whether p may see jobs of a project.
func sees(p rpc.Peer, project string) bool { return p.Project == "" || p.Project == project }

// changes says whether p may change what b submitted.
func (b by) changes(p rpc.Peer) bool {
	return administers(p) || sees(p, b.Project) && p.Owner == b.Owner
}

func (b by) String() string {
	switch {
	case b.Token == "":
		return "user " + strings.TrimPrefix(b.Owner, "uid:") + " of the head's machine"
	case b.Owner == b.Token:
		return "token " + b.Token
	}
	return fmt.Sprintf("token %s (of %s)", b.Token, b.Owner)
}

// mayChange is an error where the caller may not change a job.
func (b by) mayChange(p rpc.Peer, job string) error {
	if b.changes(p) {
		return nil
	}
	return fault.New(fault.Denied, "job %s was submitted by %s: it is for its owner, and for administrators (a token of scope admin)", job, b)
}

// projectOf says of which project a job of this name is that the caller submits, and what it is
// called then: those of a project begin with its name and a slash, and no others have a slash. It
// runs in the loop.
func (h *Head) projectOf(p rpc.Peer, name string) (project, called string, err error) {
	first, _, in := strings.Cut(name, "/")
	if p.Project != "" {
		if h.quotas[quotaKey{ofProject, p.Project}] == nil {
			return "", "", fault.New(fault.Denied, "project %s, which token %s is for, was removed", p.Project, p.Token)
		}
		if !in || first != p.Project {
			name = p.Project + "/" + name
		}
		return p.Project, name, nil
	}
	switch {
	case !in:
		return "", name, nil
	case h.quotas[quotaKey{ofProject, first}] == nil:
		return "", "", fault.New(fault.Invalid, "the name of a job has a slash only behind that of its project, and there is no project %.80q: choose another name", first)
	case !administers(p):
		return "", "", fault.New(fault.Denied, "jobs that are called %s/... are of project %s: submit them with a token of that project, or choose another name", first, first)
	}
	return first, name, nil
}

// submissionID is an id of submission on record, and as people say it who see all projects: it has
// the project before it, so that of two projects none has, or learns of, the ids of the other.
func submissionID(project, id string) string {
	if project == "" || id == "" {
		return id
	}
	return project + "/" + id
}

// submission is the id with which a job was submitted, as it is on record; "": with none.
func (v *jobRecord) submission() string { return submissionID(v.By.Project, v.Job.GetSubmission()) }

// jobFor finds a job by its id, or that of its submission, which a caller with a project says
// without it. What is of another project is not there for such a one.
func (h *Head) jobFor(p rpc.Peer, name string) (*records.Record[jobRecord], error) {
	r := h.jobs[name]
	if id := submissionID(p.Project, name); r == nil && id != "" {
		for _, x := range h.jobs {
			if x.Value.submission() == id {
				r = x
				break
			}
		}
	}
	if r != nil && sees(p, r.Value.By.Project) {
		return r, nil
	}
	if was := h.pastFor(p, name); was != nil {
		return nil, fault.New(fault.NotFound, "job %s (%s) has %s, and only that is remembered of it (start --keep-jobs)", was.Value.Job, was.ID, was.Value.Past.State)
	}
	return nil, noJob(name)
}

// pastFor is jobFor of those that are not remembered any more; nil: there is none.
func (h *Head) pastFor(p rpc.Peer, name string) *records.Record[submissionRecord] {
	if was := cmp.Or(h.past.job[name], h.past.id[submissionID(p.Project, name)]); was != nil && sees(p, was.Value.By.Project) {
		return was
	}
	return nil
}

// noJob is the error where there is none.
func noJob(name string) error {
	return fault.New(fault.NotFound, "no job %s (see penstock jobs)", name)
}
