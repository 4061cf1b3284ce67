package gang

import "time"

// SetAlone shortens how long Dial tries where nobody answers.
func (g *Gang) SetAlone(d time.Duration) { g.alone = d }
