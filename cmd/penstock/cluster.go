package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/cluster"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/spec"
	"github.com/penstock-data/penstock/internal/term"
)

const (
	envCluster = "PENSTOCK_CLUSTER"
	envToken   = "PENSTOCK_TOKEN"

	// local is how --cluster calls the head on this machine.
	local = "local"

	// reach is how long a command tries to reach a head.
	reach = 6 * time.Second

	whichCluster = `The cluster is that of --cluster, else of $PENSTOCK_CLUSTER, else of the head on this machine: HOST:PORT, with an access token in $PENSTOCK_TOKEN or in the
file --token-file; or the folder of a head on this machine, or the word local for the default one, which its own user may always use.`

	clusterExits = `Exit codes: 0 done, or stopped by SIGINT, SIGTERM or penstock stop; 1 it failed; 2 a mistake in the command line.`
)

// stateDir is where heads and nodes keep their files unless --dir says so.
func stateDir(what string) (string, error) {
	base := os.Getenv("XDG_STATE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", usage("no folder for the files of a %s: set HOME or XDG_STATE_HOME, or give --dir: %w", what, err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "penstock", what), nil
}

// whereabouts is which cluster a command is about.
type whereabouts struct{ cluster, tokenFile string }

func (p *whereabouts) flags(c *cobra.Command) {
	c.Flags().StringVar(&p.cluster, "cluster", "", "`address` of the head, host:port; or its folder, or local, on this machine")
	c.Flags().StringVar(&p.tokenFile, "token-file", "", "`file` with an access token; default: $PENSTOCK_TOKEN")
}

// dial connects to the head. The caller closes the client.
func (p *whereabouts) dial(ctx context.Context) (*cluster.Client, error) {
	addr := cmp.Or(p.cluster, os.Getenv(envCluster), local)
	limited, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	if addr == local || strings.ContainsRune(addr, filepath.Separator) {
		dir := addr
		if addr == local {
			var err error
			if dir, err = stateDir("head"); err != nil {
				return nil, err
			}
		}
		if _, err := os.Stat(cluster.SocketIn(dir)); errors.Is(err, os.ErrNotExist) {
			return nil, fault.New(fault.Unavailable, "no head runs here (%s is not there): start one with penstock start --head, or give --cluster HOST:PORT or $%s", cluster.SocketIn(dir), envCluster)
		}
		c, err := cluster.DialLocal(limited, dir)
		if errors.Is(err, syscall.ECONNREFUSED) { // of a head that was killed
			start := "penstock start --head"
			if addr != local {
				start += " --dir " + shellQuote(dir)
			}
			err = fault.New(fault.Unavailable, "no head runs here any more (nobody answers at %s): %s", cluster.SocketIn(dir), start)
		}
		return c, err
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, usage("--cluster %s: want HOST:PORT, the folder of a head on this machine, or %s", addr, local)
	}
	token := os.Getenv(envToken)
	if err := keepToItself(false); err != nil {
		return nil, err
	}
	if p.tokenFile != "" {
		b, err := os.ReadFile(p.tokenFile)
		if err != nil {
			return nil, usage("--token-file: %w", err)
		}
		token = string(b)
	}
	if strings.TrimSpace(token) == "" {
		return nil, usage("%s wants an access token: put one into $%s, or its file into --token-file (penstock token create --scope submit makes one, on the head's machine)", addr, envToken)
	}
	c, err := cluster.Dial(limited, addr, token)
	if fault.CodeOf(err) == fault.Unavailable {
		err = fault.New(fault.Unavailable, "%w; is the head running there? penstock start --head --listen :PORT starts it", err)
	}
	return c, err
}

// offer is what a node offers, of the command line.
type offer struct {
	cpus              float64
	gpus              int
	memory            string
	resources, labels []string
	jobs              cluster.Confinement
}

func (o *offer) flags(c *cobra.Command, cpus, gpus, memory string) {
	f := c.Flags()
	f.Float64Var(&o.cpus, "cpus", 0, cpus)
	f.IntVar(&o.gpus, "gpus", 0, gpus)
	f.StringVar(&o.memory, "memory", "", memory)
	f.StringArrayVar(&o.resources, "resource", nil, "another resource: `name=number`")
	f.StringSliceVar(&o.labels, "labels", nil, "labels: `key=value,...`")
}

// jobFlags are those of a node about its jobs.
func (o *offer) jobFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.jobs.User, "job-user", "", "`user` of this machine as whom jobs run, which root can say; default: this process's")
	f.StringVar(&o.jobs.Dir, "job-dir", "", "`folder` for the working directories of jobs of --job-user; default: /var/lib/penstock/jobs")
	f.StringVar(&o.jobs.Isolate, "isolate", "auto", "jobs of --job-user have a /tmp for themselves and see no processes of others: `auto`, where the kernel allows it; require, or the node does not start; off")
}

// checkCPUs refuses what is no number of CPUs; 0 is one.
func checkCPUs(flag string, cpus float64) error {
	if cpus != 0 && !(cpus >= 0.001 && cpus <= 1e6) { // NaN, too
		return usage("%s %v: want a number of CPUs, from 0.001 to 1000000", flag, cpus)
	}
	return nil
}

// read gives the resources, and the labels. What was not given is 0.
func (o *offer) read() (r cluster.Resources, labels map[string]string, err error) {
	if err := checkCPUs("--cpus", o.cpus); err != nil {
		return r, nil, err
	}
	if o.gpus < 0 {
		return r, nil, usage("--gpus cannot be less than 0")
	}
	r = cluster.Resources{CPUs: o.cpus, GPUs: o.gpus}
	if o.memory != "" {
		n, err := spec.ParseSize(o.memory)
		if err != nil {
			return r, nil, usage("--memory: %w", err)
		}
		r.Memory = int64(n)
	}
	for _, kv := range o.resources {
		k, v, ok := strings.Cut(kv, "=")
		n, err := strconv.ParseInt(v, 10, 64)
		if !ok || k == "" || err != nil || n < 0 {
			return r, nil, usage("--resource %s: want name=number, such as disk=2", kv)
		}
		if r.Named == nil {
			r.Named = map[string]int64{}
		}
		if _, twice := r.Named[k]; twice {
			return r, nil, usage("--resource: %s is given twice", k)
		}
		r.Named[k] = n
	}
	labels, err = pairs("--labels", o.labels)
	return r, labels, err
}

// pairs reads key=value.
func pairs(flag string, list []string) (map[string]string, error) {
	m := map[string]string{}
	for _, kv := range list {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, usage("%s %s: want key=value", flag, kv)
		}
		if _, twice := m[k]; twice {
			return nil, usage("%s: %s is given twice", flag, k)
		}
		m[k] = v
	}
	return m, nil
}

// node is the configuration of this machine's node.
func (o *offer) node(cmd *cobra.Command, dir, name string, log *slog.Logger) (cluster.NodeConfig, error) {
	r, labels, err := o.read()
	cfg := cluster.NodeConfig{Dir: dir, Name: name, Labels: labels, CPUs: r.CPUs, GPUs: r.GPUs, Memory: r.Memory, Named: r.Named, Jobs: o.jobs, Version: version, Log: log}
	if cmd.Flags().Changed("gpus") && r.GPUs == 0 {
		cfg.GPUs = -1
	}
	if err == nil && cmd.Flags().Changed("memory") && r.Memory == 0 {
		err = usage("--memory %s: a node without memory runs no jobs; leave it out to offer what is available", o.memory)
	}
	return cfg, err
}

const (
	offerCPUs   = "CPUs to offer; default: all"
	offerGPUs   = "GPUs to offer, 0 for none; default: all that no other process has leased"
	offerMemory = "memory to offer, such as 64GiB; default: what is available, less a tenth"
)

func startCommand() *cobra.Command {
	var head, quiet bool
	var cfg cluster.HeadConfig
	var store storeFlags
	var nodeName string
	var o offer
	c := &cobra.Command{
		Use:   "start --head",
		Short: "Start a cluster: run its head, and the first node, on this machine",
		Long: `Start runs the head of a cluster, and a node on the same machine, until SIGINT, SIGTERM or penstock stop --all. When it is ready it prints where it is and how to use it, and
with --listen the command with which one other machine joins: on a terminal with its token, elsewhere (in a log) with how to make one. Nodes go on with what they run while no head is there, and attach again when it is started again with the same folder.

Without --listen nothing listens on the network: the cluster is this machine, and its user reaches it by a socket in the folder of the head. With --listen :7071 nodes and people
connect to that port, by TLS in both directions. docs/cluster.md says more, docs/security.md who may do what.

` + clusterExits,
		Example: `  penstock start --head
  penstock start --head --listen :7071 --name head.example.org --cpus 0   # a machine that only decides
  penstock start --head --listen :7071 --store etcds://etcd1.example.org:2379 --store-ca ca.pem --store-cert head.pem --store-key head.key   # records in an etcd of yours`,
		Args: args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if !head {
				return usage("start: --head is missing, which starts a cluster; to be a node of one: penstock join HOST:PORT --token TOKEN")
			}
			if cfg.Dir == "" {
				if cfg.Dir, err = stateDir("head"); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("store") && store.Address == "" {
				return usage("start: --store is empty: give the address of an etcd, etcds://HOST:PORT, or leave it out for one in this process")
			}
			if cfg.Store, err = store.read(); err != nil {
				return err
			}
			if err := keepFromJobs(false); err != nil {
				return err
			}
			if cfg.Lease <= 0 {
				return usage("start: --lease %v: it is between a second and an hour", cfg.Lease)
			}
			if cfg.KeepJobs <= 0 {
				return usage("start: --keep-jobs %d: at least 1", cfg.KeepJobs)
			}
			if cfg.Listen != "" {
				if _, _, err := net.SplitHostPort(cfg.Listen); err != nil {
					return usage("start: --listen %s: want HOST:PORT, or :PORT for all addresses of this machine", cfg.Listen)
				}
			}
			lines := newDaemonLog(cmd.ErrOrStderr(), quiet)
			defer lines.close()
			cfg.Log, cfg.Version = slog.New(lines), version
			node, err := o.node(cmd, filepath.Join(cfg.Dir, "node"), nodeName, cfg.Log)
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("cpus") || o.cpus > 0 {
				cfg.Node = &node
			}
			h, err := cluster.StartHead(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if err = welcome(cmd, h, cfg); err == nil {
				select {
				case <-cmd.Context().Done():
				case <-h.Done():
				}
			}
			return errors.Join(err, h.Close())
		},
	}
	f := c.Flags()
	f.BoolVar(&head, "head", false, "be the head of a cluster")
	f.StringVar(&cfg.Listen, "listen", "", "`host:port` for nodes and people, such as :7071; default: none, the cluster is this machine")
	f.StringArrayVar(&cfg.Names, "name", nil, "`host` name or address by which other machines reach this one; default: the host's name")
	f.StringVar(&cfg.Dir, "dir", "", "`folder` of the head; default: penstock/head in $XDG_STATE_HOME, else in ~/.local/state")
	store.flags(c)
	f.DurationVar(&cfg.Lease, "lease", 15*time.Second, "a node that is silent for so long is lost, and its jobs start elsewhere")
	f.IntVar(&cfg.KeepJobs, "keep-jobs", 100, "how many jobs that are over are remembered; those of the last ten minutes are, besides")
	f.StringVar(&nodeName, "node-name", "", "of this machine's node; default: the one that it had, else the host's")
	f.BoolVar(&quiet, "quiet", false, "log only what goes wrong")
	o.flags(c, "CPUs to offer, 0 for no node here; default: all", offerGPUs, offerMemory)
	o.jobFlags(c)
	return c
}

// newDaemonLog is the log of a head or a node: lines that nobody sees as they come have their time.
func newDaemonLog(w io.Writer, quiet bool) *lineLog {
	l := newLineLog(w, quiet)
	l.times = !term.IsTerminal(w)
	return l
}

// welcome says what a head is, how to use it and how to join it. A token is for a terminal only: what is written elsewhere is kept, by a service manager for example.
func welcome(cmd *cobra.Command, h *cluster.Head, cfg cluster.HeadConfig) error {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster %s is ready; its folder is %s\n", h.ID(), cfg.Dir)
	if n := h.Node(); n != nil {
		fmt.Fprintf(&b, "node %s\n", n)
	} else {
		fmt.Fprintln(&b, "no node on this machine (--cpus 0)")
	}
	at := ""
	if standard, err := stateDir("head"); err != nil || standard != cfg.Dir {
		at = " --cluster " + shellQuote(inFolder(cfg.Dir))
	}
	fmt.Fprintf(&b, "\non this machine:\n  penstock status%s -w\n  penstock run --cluster %s SPEC\n", at, cmp.Or(strings.TrimPrefix(at, " --cluster "), local))
	if h.Addr() == nil {
		fmt.Fprintf(&b, "\nnothing listens on the network; start with --listen :7071 to let other machines join\n")
	} else {
		addr := reachable(h.Addr(), cfg)
		if term.IsTerminal(cmd.OutOrStdout()) {
			token, err := h.JoinToken(cmd.Context())
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "\nlistens on %s; one other machine joins, within an hour, with\n  penstock join %s --token %s\nfor more machines: penstock token create%s", h.Addr(), addr, token, at)
		} else {
			fmt.Fprintf(&b, "\nlistens on %s; one other machine joins with the token that this prints here: penstock token create%s\n  penstock join %s --token-file FILE\nanother token for each machine", h.Addr(), at, addr)
		}
		fmt.Fprintf(&b, "; for people elsewhere: penstock token create%s --scope submit, then on their machine\n  PENSTOCK_TOKEN=... penstock status --cluster %s\n", at, addr)
	}
	_, err := fmt.Fprint(cmd.OutOrStdout(), b.String())
	return err
}

// inFolder makes a path one that --cluster takes for a folder.
func inFolder(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// shellQuote quotes where a shell needs it.
func shellQuote(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%,=", r))
	}) {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

// shellLine is a command as a shell takes it: where its arguments begin and end can be seen.
func shellLine(argv []string) string {
	var words []string
	for _, a := range argv {
		words = append(words, shellQuote(a))
	}
	return strings.Join(words, " ")
}

// reachable is the address of a head as others call it.
func reachable(a net.Addr, cfg cluster.HeadConfig) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	if len(cfg.Names) > 0 {
		host = cfg.Names[0]
	} else if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}
	return net.JoinHostPort(host, port)
}

func joinCommand() *cobra.Command {
	var token, tokenFile, dir, name string
	var quiet bool
	var wait time.Duration
	var o offer
	c := &cobra.Command{
		Use:   "join HOST:PORT",
		Short: "Make this machine a node of a cluster",
		Long: `Join makes this machine a node of the cluster whose head is at HOST:PORT, and runs its jobs until SIGINT, SIGTERM or penstock stop. The first time it wants a join token, which is good
for one machine and an hour (penstock start --head --listen prints one on a terminal, penstock token create makes more). From then on the certificate in the folder is enough, which is renewed while the node
runs: after a day of absence it has ended, and the node joins with a token again. When the head is away the node goes on with what it runs.

` + clusterExits,
		Example: `  penstock join head.example.org:7071 --token "$TOKEN"
  penstock join head.example.org:7071 --cpus 8 --memory 32GiB --resource disk=2 --labels zone=a   # again, and it offers less`,
		Args: args("HOST:PORT", 1, 1),
		RunE: func(cmd *cobra.Command, a []string) (err error) {
			if token != "" && tokenFile != "" {
				return usage("join: --token or --token-file, not both")
			}
			token = strings.Clone(token)
			if err := keepFromJobs(true); err != nil {
				return err
			}
			if tokenFile != "" {
				b, err := os.ReadFile(tokenFile)
				if err != nil {
					return usage("join: --token-file: %w", err)
				}
				token = strings.TrimSpace(string(b))
			}
			if dir == "" {
				if dir, err = stateDir("node"); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("cpus") && o.cpus == 0 {
				return usage("join: --cpus 0: a node without CPUs runs no jobs; leave it out to offer all")
			}
			lines := newDaemonLog(cmd.ErrOrStderr(), quiet)
			defer lines.close()
			cfg, err := o.node(cmd, dir, name, slog.New(lines))
			if err != nil {
				return err
			}
			limited, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			n, err := cluster.Join(limited, a[0], token, cfg)
			if err != nil {
				return err
			}
			end := "penstock join makes it a node again"
			if _, err = fmt.Fprintf(cmd.OutOrStdout(), "node %s of the cluster at %s\n", n, a[0]); err == nil {
				select {
				case <-cmd.Context().Done():
				case <-n.Done():
					end = "it was stopped, and is of the cluster no more"
				}
			}
			if err = errors.Join(err, n.Close()); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "node %s has ended: %s\n", n.ID(), end)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&token, "token", "", "join `token`")
	f.StringVar(&tokenFile, "token-file", "", "`file` with the join token")
	f.StringVar(&dir, "dir", "", "`folder` of the node; default: penstock/node in $XDG_STATE_HOME, else in ~/.local/state")
	f.StringVar(&name, "name", "", "of the node; default: the one that it had, else the host's")
	f.DurationVar(&wait, "wait", 10*time.Second, "how long to try to reach the head")
	f.BoolVar(&quiet, "quiet", false, "log only what goes wrong")
	o.flags(c, offerCPUs, offerGPUs, offerMemory)
	o.jobFlags(c)
	return c
}
