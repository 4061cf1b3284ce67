package ops

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/penstock-data/penstock/internal/fault"
)

// Registry holds the functions that plans may name. The same binary runs
// everywhere, so a name stands for code. Safe for concurrent use.
type Registry struct {
	mu    sync.Mutex
	funcs map[string]*Registered
}

// Registered is a function known by name.
type Registered struct {
	name, version, kind, place string
	make                       func(config []byte, f *Func) error
}

// defaultRegistry is what RegisterMap and its kin fill at init: the one global
// of the module.
var defaultRegistry Registry

// DefaultRegistry is where [RegisterMap], [RegisterFlatMap] and [RegisterFilter] put functions.
func DefaultRegistry() *Registry { return &defaultRegistry }

// RegisterMap makes a function known by name, so that plans with it can be
// encoded, resumed and run on a cluster. Call it at init, once per name; a second
// time panics. A new version says that the function does something else. newFn
// makes the function from the configuration in the plan.
func RegisterMap(name, version string, newFn func(config []byte) (MapFunc, error)) *Registered {
	return defaultRegistry.add(name, version, "map", maker(newFn, func(f *Func, m MapFunc) { f.Map = m }))
}

// RegisterFlatMap is RegisterMap for functions that change the number of rows.
func RegisterFlatMap(name, version string, newFn func(config []byte) (FlatMapFunc, error)) *Registered {
	return defaultRegistry.add(name, version, "flat_map", maker(newFn, func(f *Func, m FlatMapFunc) { f.FlatMap = m }))
}

// RegisterFilter is RegisterMap for filters.
func RegisterFilter(name, version string, newFn func(config []byte) (FilterFunc, error)) *Registered {
	return defaultRegistry.add(name, version, "filter", maker(newFn, func(f *Func, m FilterFunc) { f.Filter = m }))
}

// Map is RegisterMap into a registry of one's own.
func (r *Registry) Map(name, version string, newFn func(config []byte) (MapFunc, error)) *Registered {
	return r.add(name, version, "map", maker(newFn, func(f *Func, m MapFunc) { f.Map = m }))
}

// FlatMap is RegisterFlatMap into a registry of one's own.
func (r *Registry) FlatMap(name, version string, newFn func(config []byte) (FlatMapFunc, error)) *Registered {
	return r.add(name, version, "flat_map", maker(newFn, func(f *Func, m FlatMapFunc) { f.FlatMap = m }))
}

// Filter is RegisterFilter into a registry of one's own.
func (r *Registry) Filter(name, version string, newFn func(config []byte) (FilterFunc, error)) *Registered {
	return r.add(name, version, "filter", maker(newFn, func(f *Func, m FilterFunc) { f.Filter = m }))
}

func maker[F any](newFn func([]byte) (F, error), set func(*Func, F)) func([]byte, *Func) error {
	return func(config []byte, f *Func) error {
		fn, err := newFn(config)
		if err == nil {
			set(f, fn)
		}
		return err
	}
}

// add is called by exported functions directly below the user's code.
func (r *Registry) add(name, version, kind string, mk func([]byte, *Func) error) *Registered {
	place := "?"
	if _, file, line, ok := runtime.Caller(2); ok {
		place = fmt.Sprintf("%s:%d", file, line)
	}
	if name == "" {
		panic("ops: a registered function needs a name, at " + place)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, dup := r.funcs[name]; dup {
		panic(fmt.Sprintf("ops: function %q is registered twice: at %s and at %s", name, old.place, place))
	}
	if r.funcs == nil {
		r.funcs = map[string]*Registered{}
	}
	g := &Registered{name: name, version: version, kind: kind, place: place, make: mk}
	r.funcs[name] = g
	return g
}

// Func makes the function for one configuration (may be nil). Set its Schema,
// UsesRandom and Passes before giving it to a plan.
func (g *Registered) Func(config []byte) (f *Func, err error) {
	f = &Func{Name: g.name, Version: g.version, Config: slices.Clone(config)}
	defer func() {
		if p := recover(); p != nil {
			f, err = nil, fault.New(fault.UserCode, "function %q panicked on its configuration: %v", g.name, p)
		}
	}()
	if err := g.make(f.Config, f); err != nil {
		return nil, fault.WithCode(fault.Invalid, fmt.Errorf("function %q refuses its configuration: %w", g.name, err))
	}
	if f.kind() == "" {
		return nil, fault.New(fault.Invalid, "function %q: its constructor returned nil", g.name)
	}
	return f, nil
}

// Lookup finds a function by name.
func (r *Registry) Lookup(name string) (*Registered, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g, ok := r.funcs[name]; ok {
		return g, nil
	}
	have := "none is registered"
	if names := slices.Sorted(maps.Keys(r.funcs)); len(names) > 0 {
		have = "have " + abbreviate(names, 20)
	}
	return nil, fault.New(fault.Invalid, "function %q is not registered in this binary; %s", name, have)
}

// Digest identifies names, kinds and versions: nodes that run one plan must have equal ones.
func (r *Registry) Digest() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(r.funcs)) {
		g := r.funcs[name]
		fmt.Fprintf(h, "%q %q %q\n", g.name, g.version, g.kind)
	}
	return hex.EncodeToString(h.Sum(nil))
}
