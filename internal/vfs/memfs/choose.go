package memfs

import "math/rand/v2"

// constant keeps all, or nothing.
type constant bool

func (c constant) names(kept []bool) {
	for i := range kept {
		kept[i] = bool(c)
	}
}

func (c constant) content(f *candidates, k *keptContent) {
	f.upTo(k, 0)
	if c {
		f.upTo(k, len(f.pending))
	}
}

// upTo keeps the first n changes of a file, whole.
func (f *candidates) upTo(k *keptContent, n int) {
	k.size = n
	for i, t := range f.touched {
		k.versions[i] = -1
		for _, version := range t {
			if version <= n {
				k.versions[i] = version
			}
		}
	}
}

// odometer goes through all choices: each run of crash reads its digits in order, and next counts up.
type odometer struct {
	digits, bases []int
	at            int
}

func (o *odometer) pick(n int) int {
	if o.at == len(o.digits) {
		o.digits, o.bases = append(o.digits, 0), append(o.bases, n)
	}
	o.at++
	return o.digits[o.at-1]
}

// next moves on to the next choice, or returns false after the last.
func (o *odometer) next() bool {
	o.at = 0
	for n := len(o.digits) - 1; n >= 0; n-- {
		if o.digits[n]++; o.digits[n] < o.bases[n] {
			return true
		}
		o.digits, o.bases = o.digits[:n], o.bases[:n] // later digits may have other bases now
	}
	return false
}

func (o *odometer) names(kept []bool) {
	for i := range kept {
		kept[i] = o.pick(2) == 1
	}
}

func (o *odometer) content(f *candidates, k *keptContent) {
	k.size = f.sizes[o.pick(len(f.sizes))]
	for i, t := range f.touched {
		k.versions[i] = -1
		if t != nil {
			k.versions[i] = t[o.pick(len(t))]
		}
	}
}

// sampler chooses at random, in several styles.
type sampler struct{ *rand.Rand }

func (s *sampler) coin() bool { return s.IntN(2) == 0 }

func (s *sampler) names(kept []bool) {
	switch s.IntN(4) {
	case 0: // all
		constant(true).names(kept)
	case 1: // none
	case 2: // a prefix
		constant(true).names(kept[:s.IntN(len(kept)+1)])
	case 3:
		for i := range kept {
			kept[i] = s.coin()
		}
	}
}

func (s *sampler) content(f *candidates, k *keptContent) {
	all := len(f.pending)
	switch style := s.IntN(10); {
	case style == 0:
		f.upTo(k, 0)
	case style == 1:
		f.upTo(k, all)
	case style < 5: // a prefix of the changes, and a part of the next
		n := s.IntN(all)
		f.upTo(k, n)
		s.tear(f, k, n)
		s.size(f, k, n, n+1)
	case style < 7: // each change whole, torn or lost
		f.upTo(k, 0)
		for i := range all {
			switch s.IntN(3) {
			case 0:
				f.part(k, i, func(int) bool { return true })
			case 1:
				s.tear(f, k, i)
			}
		}
		s.size(f, k, 0, all)
	case style < 9: // all but one sector
		f.upTo(k, all)
		var changed []int
		for i, t := range f.touched {
			if t != nil {
				changed = append(changed, i)
			}
		}
		if len(changed) > 0 {
			i := changed[s.IntN(len(changed))]
			k.versions[i] = f.touched[i][s.IntN(len(f.touched[i])-1)]
		}
	default: // each sector by itself
		for i, t := range f.touched {
			k.versions[i] = -1
			if t != nil {
				k.versions[i] = t[s.IntN(len(t))]
			}
		}
		s.size(f, k, 0, all)
	}
}

// size picks the last size, or one after low to high changes.
func (s *sampler) size(f *candidates, k *keptContent, low, high int) {
	k.size = len(f.pending)
	if s.coin() {
		k.size = low + s.IntN(high-low+1)
	}
}

// tear keeps a part of the sectors of change i.
func (s *sampler) tear(f *candidates, k *keptContent, i int) {
	n := len(f.pending[i].sectors)
	if n == 0 {
		return
	}
	at := s.IntN(n + 1)
	var kept func(int) bool
	switch s.IntN(4) {
	case 0:
		kept = func(j int) bool { return j < at }
	case 1:
		kept = func(j int) bool { return j >= at }
	case 2:
		kept = func(j int) bool { return j != at }
	case 3:
		kept = func(int) bool { return s.coin() }
	}
	f.part(k, i, kept)
}

// part keeps those sectors of change i for which kept is true, counted from its first sector.
func (f *candidates) part(k *keptContent, i int, kept func(j int) bool) {
	ch := &f.pending[i]
	for j := range ch.sectors {
		if kept(j) {
			k.versions[ch.first-f.first+j] = i + 1
		}
	}
}
