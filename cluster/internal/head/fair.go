package head

import (
	"container/heap"
	"slices"
)

// fair is a queue whose entries have owners. What has to go, as there is no room, is the oldest
// entry of the owner who has the most: nobody's go because of somebody who has more. The zero value
// is empty.
type fair[T any] struct {
	n    int
	of   map[string]*line[T]
	most lines[T]
	next int64 // number of the entry that comes next
}

// line is the entries of an owner.
type line[T any] struct {
	owner   string
	at      int // in lines
	entries []T
	numbers []int64 // when each came
}

// lines is a heap: the longest is first, and of those the one whose oldest entry came first.
type lines[T any] []*line[T]

func (l lines[T]) Len() int { return len(l) }
func (l lines[T]) Less(i, j int) bool {
	if n, m := len(l[i].entries), len(l[j].entries); n != m {
		return n > m
	}
	return l[i].numbers[0] < l[j].numbers[0]
}
func (l lines[T]) Swap(i, j int) { l[i], l[j] = l[j], l[i]; l[i].at, l[j].at = i, j }
func (l *lines[T]) Push(x any)   { x.(*line[T]).at = len(*l); *l = append(*l, x.(*line[T])) }
func (l *lines[T]) Pop() any {
	last := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return last
}

// add puts an entry of an owner last.
func (f *fair[T]) add(owner string, x T) {
	l := f.line(owner)
	l.entries, l.numbers = append(l.entries, x), append(l.numbers, f.next)
	f.n++
	f.next++
	f.fix(l)
}

// first is what has to go first, of a queue that is not empty.
func (f *fair[T]) first() T { return f.most[0].entries[0] }

// taken is an entry that was taken out.
type taken[T any] struct {
	owner  string
	number int64
	entry  T
}

// drop takes that out.
func (f *fair[T]) drop() taken[T] {
	l := f.most[0]
	t := taken[T]{l.owner, l.numbers[0], l.entries[0]}
	var none T
	l.entries[0] = none
	l.entries, l.numbers = l.entries[1:], l.numbers[1:]
	f.n--
	if len(l.entries) == 0 {
		heap.Pop(&f.most)
		delete(f.of, l.owner)
	} else {
		heap.Fix(&f.most, 0)
	}
	return t
}

// restore puts back what was taken out.
func (f *fair[T]) restore(t taken[T]) {
	l := f.line(t.owner)
	at, _ := slices.BinarySearch(l.numbers, t.number)
	l.entries, l.numbers = slices.Insert(l.entries, at, t.entry), slices.Insert(l.numbers, at, t.number)
	f.n++
	f.fix(l)
}

// line is that of an owner, which is to get an entry.
func (f *fair[T]) line(owner string) *line[T] {
	if f.of == nil {
		f.of = map[string]*line[T]{}
	}
	l := f.of[owner]
	if l == nil {
		l = &line[T]{owner: owner}
		f.of[owner] = l
	}
	return l
}

// fix puts a line that got an entry where it belongs.
func (f *fair[T]) fix(l *line[T]) {
	if len(l.entries) == 1 {
		heap.Push(&f.most, l)
	} else {
		heap.Fix(&f.most, l.at)
	}
}

// all gives the entries, in no order.
func (f *fair[T]) all(yield func(T) bool) {
	for _, l := range f.most {
		for _, x := range l.entries {
			if !yield(x) {
				return
			}
		}
	}
}
