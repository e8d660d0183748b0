package top

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
)

// Actions are the operations behind the keys. They can be slow, and stop when their context ends.
type Actions interface {
	// ExplainNode explains why a node can or cannot be removed, like slipway why.
	ExplainNode(ctx context.Context, node string) (string, error)
	// ExplainPlan lists the nodes that could be removed together, like slipway plan.
	ExplainPlan(ctx context.Context) (string, error)
	// CancelRetirement cancels a retirement: it deletes the NodeRetirement with this name and UID.
	CancelRetirement(ctx context.Context, name string, uid types.UID) error
}

// Options configures a UI.
type Options struct {
	// Title names the cluster.
	Title string
	// ASCII draws without block characters; see [Screen].
	ASCII bool
	// Now is the time until the first tick.
	Now time.Time
}

// UI is the view on a terminal, a [tea.Model]. It receives a State as a message.
type UI struct {
	ctx     context.Context //nolint:containedctx // bubbletea's Update has no context; this is the context of the program
	actions Actions
	options Options

	state         State
	hasState      bool // a State has arrived
	now           time.Time
	width, height int
	selected      string
	message       string // result of the last action

	page            *page
	cancelCandidate *Retirement // the retirement that the confirmation asks about
}

// page shows an answer in place of the nodes.
type page struct {
	title     string
	text      string // empty until the answer arrives
	firstLine int    // the first visible line
	cancel    context.CancelFunc
}

// NewUI returns a UI without a State. Its actions stop when the context ends.
func NewUI(ctx context.Context, actions Actions, o Options) *UI {
	return &UI{ctx: ctx, actions: actions, options: o, now: o.Now, width: 80, height: 24}
}

type (
	tick       time.Time
	pageResult struct {
		page *page
		text string
	}
	messageResult string
)

// Init starts the ticks.
func (u *UI) Init() tea.Cmd { return tickEverySecond() }

func tickEverySecond() tea.Cmd {
	return tea.Every(time.Second, func(t time.Time) tea.Msg { return tick(t) })
}

// Update handles a State, a key, a window size or an answer.
func (u *UI) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case State:
		u.setState(msg)
	case tick:
		u.now = time.Time(msg)
		return u, tickEverySecond()
	case tea.WindowSizeMsg:
		u.width, u.height = msg.Width, msg.Height
	case pageResult:
		if msg.page == u.page && u.page != nil { // not for a page that was closed
			u.page.text = msg.text
		}
	case messageResult:
		u.message = string(msg)
	case tea.KeyPressMsg:
		return u, u.handleKey(msg.String())
	}
	return u, nil
}

// setState shows a State. The cursor stays on its node. If that node is gone, the cursor stays at its line.
func (u *UI) setState(s State) {
	was := u.listNodeNames()
	u.state, u.hasState = s, true
	is := u.listNodeNames()
	if len(is) == 0 || slices.Contains(is, u.selected) {
		return
	}
	at := max(slices.Index(was, u.selected), 0)
	u.selected = is[min(at, len(is)-1)]
}

// listNodeNames returns the names of all lines with a node, in the order of display.
func (u *UI) listNodeNames() (all []string) {
	for _, g := range u.state.Groups {
		for _, n := range g.Nodes {
			all = append(all, n.Name)
		}
	}
	return all
}

// selectedNode returns the node under the cursor, or nil.
func (u *UI) selectedNode() *Node {
	for _, g := range u.state.Groups {
		for i := range g.Nodes {
			if g.Nodes[i].Name == u.selected {
				return &g.Nodes[i]
			}
		}
	}
	return nil
}

func (u *UI) handleKey(key string) tea.Cmd {
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case u.cancelCandidate != nil:
		return u.cancelRetirementIfConfirmed(key)
	case u.page != nil:
		u.scrollOrClosePage(key)
		return nil
	}
	u.message = ""
	switch key {
	case "q":
		return tea.Quit
	case "w", "enter":
		return u.openNodeExplanation()
	case "p":
		return u.openPage("plan: which nodes could be removed together", u.actions.ExplainPlan)
	case "c":
		u.askToCancelRetirement()
	default:
		u.moveCursor(key)
	}
	return nil
}

// parseCursorStep returns how far a key moves the cursor. The keys for the ends return more than any list has.
func parseCursorStep(key string, page int) (step int) {
	const end = 1 << 30
	switch key {
	case "up", "k":
		return -1
	case "down", "j":
		return 1
	case "pgup", "b":
		return -page
	case "pgdown", "space":
		return page
	case "home", "g":
		return -end
	case "end", "G":
		return end
	}
	return 0
}

func (u *UI) moveCursor(key string) {
	all := u.listNodeNames()
	by := parseCursorStep(key, max(u.height/2, 1))
	if len(all) == 0 || by == 0 {
		return
	}
	u.selected = all[min(max(slices.Index(all, u.selected)+by, 0), len(all)-1)]
}

// scrollOrClosePage scrolls or closes a page.
func (u *UI) scrollOrClosePage(key string) {
	switch key {
	case "q", "esc", "enter", "backspace":
		u.page.cancel()
		u.page = nil
		return
	}
	lines := len(u.wrapText(u.page.text))
	u.page.firstLine = min(max(u.page.firstLine+parseCursorStep(key, u.pageHeight()), 0), max(lines-u.pageHeight(), 0))
}

// openPage opens a page, requests its text, and shows it on arrival.
func (u *UI) openPage(title string, ask func(context.Context) (string, error)) tea.Cmd {
	ctx, stop := context.WithCancel(u.ctx)
	p := &page{title: title, cancel: stop}
	u.page = p
	return func() tea.Msg {
		defer stop()
		text, err := ask(ctx)
		if err != nil {
			text = strings.TrimLeft(text+"\nError:  "+err.Error(), "\n")
		}
		return pageResult{p, text}
	}
}

// openNodeExplanation shows what the State says about the node, and then the answer of placement.
func (u *UI) openNodeExplanation() tea.Cmd {
	n := u.selectedNode()
	if n == nil {
		u.message = "no node is selected"
		return nil
	}
	name, here, there := n.Name, u.describeNode(n), n.HasNode
	return u.openPage("why "+name, func(ctx context.Context) (string, error) {
		if !there {
			return here, nil
		}
		text, err := u.actions.ExplainNode(ctx, name)
		return here + "\n" + text, err
	})
}

// describeNode returns what the State says about a node.
func (u *UI) describeNode(n *Node) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", n.Name, n.Activity.Describe(u.now))
	for _, notice := range u.state.Notices {
		if notice.Node == n.Name {
			fmt.Fprintf(&b, "notice %s (%s %s): %s %s\n", notice.Type, notice.Source, notice.ID, notice.FormatCountdown(u.now), notice.Description)
		}
	}
	if rt := n.Retirement; rt != nil {
		fmt.Fprintf(&b, "NodeRetirement %s (%s, requested by %s) is %s: %s\n", rt.Name, rt.Reason, orUnknownUser(rt.RequestedBy), rt.Phase, rt.Message)
		for _, r := range rt.Reasons {
			fmt.Fprintf(&b, "  %s: %s\n", strings.TrimSpace(r.Code+" "+r.Object), r.Message)
		}
	}
	return b.String()
}

func orUnknownUser(by string) string {
	if by == "" {
		return "unknown"
	}
	return by
}

func (u *UI) askToCancelRetirement() {
	n := u.selectedNode()
	switch {
	case n == nil:
		u.message = "no node is selected"
	case n.Retirement == nil:
		u.message = n.Name + " has no retirement to cancel"
	case !n.Retirement.IsCancellable():
		u.message = fmt.Sprintf("%s cannot be cancelled: it is %s, and its Node is deleted or it has ended", n.Retirement.Name, n.Retirement.Phase)
	default:
		u.cancelCandidate = n.Retirement
	}
}

// cancelRetirementIfConfirmed cancels the retirement on y. Any other key means no.
func (u *UI) cancelRetirementIfConfirmed(key string) tea.Cmd {
	rt := u.cancelCandidate
	u.cancelCandidate = nil
	if key != "y" && key != "Y" {
		u.message = "not cancelled"
		return nil
	}
	u.message = "cancelling " + rt.Name + " ..."
	return func() tea.Msg {
		if err := u.actions.CancelRetirement(u.ctx, rt.Name, rt.UID); err != nil {
			return messageResult(fmt.Sprintf("%s is not cancelled: %v", rt.Name, err))
		}
		return messageResult(rt.Name + " is cancelled: the node will be restored")
	}
}

func (u *UI) View() tea.View {
	v := tea.NewView(u.RenderScreen())
	v.AltScreen = true
	return v
}

// RenderScreen returns the current screen as text.
func (u *UI) RenderScreen() string {
	on := Screen{
		Width: u.width, Height: u.height, ASCII: u.options.ASCII, Now: u.now, Title: u.options.Title, Selected: u.selected, Footer: u.buildFooter(),
	}
	switch {
	case u.page != nil:
		return u.renderPage(on)
	case !u.hasState:
		return on.fitLine("slipway top  " + u.options.Title + "  reading the cluster ...")
	}
	return RenderState(u.state, on)
}

const keyHelp = "up/down select   w why   p plan   c cancel   q quit"

func (u *UI) buildFooter() []string {
	switch {
	case u.cancelCandidate != nil:
		return u.buildConfirmation()
	case u.message != "":
		return append(u.wrapText(u.message), keyHelp)
	}
	return []string{keyHelp}
}

func (u *UI) buildConfirmation() []string {
	rt := u.cancelCandidate
	text := fmt.Sprintf("Cancel %s (%s, %s)? Its node will be restored.", rt.Name, rt.Reason, rt.Phase)
	if rt.Reason == v1alpha1.Idle && rt.RequestedBy == nodegroup.IdleRequester {
		text += " The idle rule can request it again."
	}
	return append(u.wrapText(text), "y yes   any other key: no")
}

// pageHeight returns the number of visible lines of a page, between title and keys.
func (u *UI) pageHeight() int { return max(u.height-4, 1) }

func (u *UI) renderPage(on Screen) string {
	lines := []string{bold.Render(on.fitLine(u.page.title)), ""}
	text := u.wrapText(u.page.text)
	if u.page.text == "" {
		text = []string{"reading the cluster ..."}
	}
	from := min(u.page.firstLine, max(len(text)-u.pageHeight(), 0))
	shown := text[from:min(from+u.pageHeight(), len(text))]
	lines = append(lines, shown...)
	for len(lines) < u.height-1 {
		lines = append(lines, "")
	}
	foot := "esc back"
	if len(shown) < len(text) {
		foot = fmt.Sprintf("esc back   up/down scroll   lines %d to %d of %d", from+1, from+len(shown), len(text))
	}
	lines = append(lines, on.fitLine(foot))
	return strings.Join(lines[:min(len(lines), max(u.height, 1))], "\n")
}

// wrapText breaks a text into lines that fit the screen. Continued lines are indented.
func (u *UI) wrapText(text string) (lines []string) {
	const indent = "    "
	width := max(u.width, len(indent)+1)
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		line = strings.TrimRight(toOneLine(line), " ")
		first, rest, more := strings.Cut(ansi.Wrap(line, width, ""), "\n")
		lines = append(lines, first)
		if !more {
			continue
		}
		rest = ansi.Wrap(strings.ReplaceAll(rest, "\n", " "), width-len(indent), "")
		for _, part := range strings.Split(rest, "\n") {
			lines = append(lines, indent+part)
		}
	}
	return lines
}
