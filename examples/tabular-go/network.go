package main

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"

	"github.com/gomlx/gomlx/backends/simplego"
	"github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"
)

const inputs, hidden = 8, 32

// network is a perceptron with one hidden layer, and its optimiser. The parameters lie in one slice, as their gradients do, which are summed over the ranks.
type network struct {
	params  []float32
	adam    [2][]float32 // moments of the gradients
	steps   int64
	forward *graph.Exec
	grads   *graph.Exec
}

var shapes = [][2]int{{inputs, hidden}, {1, hidden}, {hidden, 1}, {1, 1}}

func newNetwork(seed uint64) (*network, error) {
	backend, err := simplego.New("parallelism=1") // one thread: the same bits in every run
	if err != nil {
		return nil, err
	}
	n := &network{}
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, s := range shapes {
		for range s[0] * s[1] {
			n.params = append(n.params, float32(rng.NormFloat64()/math.Sqrt(float64(s[0]))))
		}
	}
	n.adam = [2][]float32{make([]float32, len(n.params)), make([]float32, len(n.params))}
	if n.forward, err = graph.NewExec(backend, predict); err != nil {
		return nil, err
	}
	n.grads, err = graph.NewExec(backend, func(w1, b1, w2, b2, x, y *graph.Node) (*graph.Node, *graph.Node) {
		loss := graph.ReduceAllMean(graph.Square(graph.Sub(predict(w1, b1, w2, b2, x), y)))
		var flat []*graph.Node
		for _, g := range graph.Gradient(loss, w1, b1, w2, b2) {
			flat = append(flat, graph.Reshape(g, g.Shape().Size()))
		}
		return loss, graph.Concatenate(flat, 0)
	})
	return n, err
}

func predict(w1, b1, w2, b2, x *graph.Node) *graph.Node {
	return graph.Add(graph.Dot(graph.Tanh(graph.Add(graph.Dot(x, w1), b1)), w2), b2)
}

// args are the parameters as tensors, then x.
func (n *network) args(x []float32) (a []any) {
	at := 0
	for _, s := range shapes {
		a = append(a, tensors.FromFlatDataAndDimensions(n.params[at:at+s[0]*s[1]], s[0], s[1]))
		at += s[0] * s[1]
	}
	return append(a, tensors.FromFlatDataAndDimensions(x, len(x)/inputs, inputs))
}

// gradients of the mean squared error over these rows.
func (n *network) gradients(x, y []float32) (loss float32, grads []float32, err error) {
	l, g, err := n.grads.Exec2(append(n.args(x), tensors.FromFlatDataAndDimensions(y, len(y), 1))...)
	if err != nil {
		return 0, nil, err
	}
	grads, err = tensors.CopyFlatData[float32](g)
	return tensors.ToScalar[float32](l), grads, err
}

func (n *network) predict(x []float32) ([]float32, error) {
	p, err := n.forward.Exec1(n.args(x)...)
	if err != nil {
		return nil, err
	}
	return tensors.CopyFlatData[float32](p)
}

// step goes down the gradient: Adam (Kingma and Ba, 2015).
func (n *network) step(grads []float32, rate float64) {
	const b1, b2, tiny = 0.9, 0.999, 1e-8
	n.steps++
	c1, c2 := 1-math.Pow(b1, float64(n.steps)), 1-math.Pow(b2, float64(n.steps))
	for i, g := range grads {
		m, v := &n.adam[0][i], &n.adam[1][i]
		*m = b1**m + (1-b1)*g
		*v = b2**v + (1-b2)*g*g
		n.params[i] -= float32(rate * float64(*m) / c1 / (math.Sqrt(float64(*v)/c2) + tiny))
	}
}

// all that a checkpoint holds of the network.
func (n *network) state() []any { return []any{n.params, n.adam[0], n.adam[1], &n.steps} }

func (n *network) save(path string) error {
	var b bytes.Buffer
	for _, x := range n.state() {
		if err := binary.Write(&b, binary.LittleEndian, x); err != nil {
			return err
		}
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

func (n *network) load(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	r := bytes.NewReader(b)
	for _, x := range n.state() {
		if err := binary.Read(r, binary.LittleEndian, x); err != nil {
			return err
		}
	}
	return nil
}
