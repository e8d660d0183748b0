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
	"github.com/slipway-dev/slipway/internal/screen"
)

// Actions holds the operations that keys start. They can be slow, and stop when their context ends.
type Actions interface {
	// ExplainNode explains why a node can or cannot be removed, like slipway why.
	ExplainNode(ctx context.Context, node string) (string, error)
	// DescribeNodePods says why the pods of a node stay. It sends no request.
	DescribeNodePods(ctx context.Context, node string) (NodePods, error)
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

// UI is the live view on a terminal, and a [tea.Model]. It receives each State as a message.
type UI struct {
	ctx     context.Context //nolint:containedctx // bubbletea's Update has no context; this is the context of the program
	actions Actions
	options Options

	whole         State // the latest State
	state         State // the nodes of whole that the filter shows, in order
	hasState      bool  // a State has arrived
	now           time.Time
	width, height int
	selected      string
	message       string // result of the last action

	sort    Sort
	filter  string
	editing bool // keys change the filter

	pane        paneKind
	paneChosen  bool // the user has opened or closed a pane
	scrollsPane bool // keys that move the cursor scroll the open pane instead
	paneScroll  paneScroll
	pods        NodePods
	podsBusy    bool // DescribeNodePods runs

	page            *page
	cancelCandidate *Retirement // the retirement that the confirmation asks about
}

// paneKind is what the pane below the nodes shows.
type paneKind int

const (
	noPane paneKind = iota
	podsPane
	eventsPane
)

// paneScroll is how far a pane is scrolled. Another pane begins at its first line.
type paneScroll struct {
	title     string
	firstLine int
}

// tallScreenHeight is the least height that opens the pane with pods at the start.
const tallScreenHeight = 30

// page is a text that covers the list of nodes.
type page struct {
	title     string
	text      string // empty until the answer arrives
	firstLine int    // the first visible line
	cancel    context.CancelFunc
}

// NewUI returns a UI without a State. Its actions stop when ctx ends.
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
	podsResult    NodePods
)

// Init implements [tea.Model]. It starts a tick every second.
func (u *UI) Init() tea.Cmd { return tickEverySecond() }

func tickEverySecond() tea.Cmd {
	return tea.Every(time.Second, func(t time.Time) tea.Msg { return tick(t) })
}

// Update implements [tea.Model]. It handles a State, a key, a window size, or the result of an action.
func (u *UI) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case State:
		u.setState(msg)
		return u, u.refreshPods()
	case podsResult:
		u.podsBusy, u.pods = false, NodePods(msg)
		if u.pods.Node != u.selected {
			return u, u.refreshPods()
		}
	case tick:
		u.now = time.Time(msg)
		return u, tickEverySecond()
	case tea.WindowSizeMsg:
		u.width, u.height = msg.Width, msg.Height
		return u, u.refreshPods()
	case pageResult:
		if msg.page == u.page && u.page != nil { // not for a page that was closed
			u.page.text = msg.text
		}
	case messageResult:
		u.message = string(msg)
	case tea.KeyPressMsg:
		return u, tea.Batch(u.handleKey(msg), u.refreshPods())
	}
	return u, nil
}

// setState shows a State.
func (u *UI) setState(s State) {
	u.whole, u.hasState = s, true
	u.applyFilterAndSort()
}

// applyFilterAndSort shows the nodes that match the filter, in order. The cursor stays on its node. If this node is not shown, the
// cursor stays on its line.
func (u *UI) applyFilterAndSort() {
	was := u.listNodeNames()
	u.state = u.whole.filterAndSort(u.filter, u.sort, u.now)
	is := u.listNodeNames()
	if len(is) == 0 || slices.Contains(is, u.selected) {
		return
	}
	at := max(slices.Index(was, u.selected), 0)
	u.selected = is[min(at, len(is)-1)]
}

// shownPane returns which pane is open.
func (u *UI) shownPane() paneKind {
	if !u.paneChosen && u.height >= tallScreenHeight {
		return podsPane
	}
	return u.pane
}

func (u *UI) togglePane(pane paneKind) {
	if u.shownPane() == pane {
		pane = noPane
	}
	u.pane, u.paneChosen, u.scrollsPane = pane, true, false
}

// toggleScrolling lets the keys that move the cursor scroll the open pane, or move the cursor again. From then on the pane
// stays open on a screen of any height.
func (u *UI) toggleScrolling() {
	shown := u.shownPane()
	if shown == noPane {
		u.message = "no pane is open: <enter> pods, <e> events"
		return
	}
	u.pane, u.paneChosen, u.scrollsPane = shown, true, !u.scrollsPane
}

// scrollPane scrolls the open pane, as the key says.
func (u *UI) scrollPane(key string) {
	on := u.newScreen()
	_, height := on.renderLines(u.state)
	by := parseCursorStep(key, max(height, 1))
	last := max(len(on.Pane.Lines)-height, 0)
	u.paneScroll = paneScroll{on.Pane.Title, min(max(min(on.Pane.FirstLine, last)+by, 0), last)}
}

// refreshPods describes the pods of the selected node again if their pane is open. It does nothing while it is still busy.
func (u *UI) refreshPods() tea.Cmd {
	n := u.selectedNode()
	if n == nil || !n.HasNode || u.shownPane() != podsPane || u.podsBusy {
		return nil
	}
	u.podsBusy = true
	name := n.Name
	return func() tea.Msg {
		pods, err := u.actions.DescribeNodePods(u.ctx, name)
		if err != nil {
			pods.Lines = []PaneLine{{Trouble, err.Error()}}
		}
		pods.Node = name
		return podsResult(pods)
	}
}

// buildPane returns the open pane, or a Pane without a title.
func (u *UI) buildPane() Pane {
	var p Pane
	switch n := u.selectedNode(); {
	case u.shownPane() == eventsPane:
		p = Pane{Title: "Events", Lines: describeEvents(u.whole, u.now)}
	case u.shownPane() == noPane || n == nil:
		return Pane{}
	case !n.HasNode:
		p = Pane{Title: "Pods of " + n.Name, Lines: []PaneLine{{Normal, "it has no Node"}}}
	case u.pods.Node != n.Name:
		p = Pane{Title: "Pods of " + n.Name}
	default:
		p = Pane{Title: "Pods of " + n.Name, Lines: u.pods.Lines}
	}
	if u.paneScroll.title == p.Title {
		p.FirstLine = u.paneScroll.firstLine
	}
	return p
}

// listNodeNames returns the names of all nodes in the order of display.
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

func (u *UI) handleKey(msg tea.KeyPressMsg) tea.Cmd {
	key := msg.String()
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case u.cancelCandidate != nil:
		return u.cancelRetirementIfConfirmed(key)
	case u.page != nil:
		u.scrollOrClosePage(key)
		return nil
	case u.editing:
		u.editFilter(msg)
		return nil
	}
	u.message = ""
	if order, is := sortKeys[key]; is {
		u.sort = u.sort.toggle(order)
		u.applyFilterAndSort()
		return nil
	}
	switch key {
	case "q":
		return tea.Quit
	case "?":
		return u.openPage("slipway top: keys", func(context.Context) (string, error) { return helpText, nil })
	case "/":
		u.editing = true
	case "esc":
		if u.scrollsPane {
			u.scrollsPane = false
			break
		}
		u.filter = ""
		u.applyFilterAndSort()
	case "tab":
		u.toggleScrolling()
	case "enter":
		u.togglePane(podsPane)
	case "e":
		u.togglePane(eventsPane)
	case "w":
		return u.openNodeExplanation()
	case "p":
		return u.openPage("plan: which nodes could be removed together", u.actions.ExplainPlan)
	case "c":
		u.askToCancelRetirement()
	default:
		if u.scrollsPane {
			u.scrollPane(key)
			break
		}
		u.moveCursor(key)
	}
	return nil
}

// editFilter changes the filter by a key. Enter keeps the filter, and Esc removes it.
func (u *UI) editFilter(msg tea.KeyPressMsg) {
	switch key := msg.String(); {
	case key == "enter":
		u.editing = false
	case key == "esc":
		u.filter, u.editing = "", false
	case key == "backspace" && u.filter == "":
		u.editing = false
	case key == "backspace":
		runes := []rune(u.filter)
		u.filter = string(runes[:len(runes)-1])
	case key == "up" || key == "down":
		u.moveCursor(key)
	default:
		u.filter += screen.ToOneLine(msg.Text)
	}
	u.applyFilterAndSort()
}

// parseCursorStep returns how many lines a key moves the cursor. For a key that moves to the first or last line, the
// result is larger than any list.
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

// scrollOrClosePage scrolls or closes the open page, as the key says.
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

// openPage opens a page, calls ask in the background, and shows the resulting text.
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

// openNodeExplanation opens a page about the selected node. The page shows what the State says about the node, and then
// whether its pods would fit elsewhere.
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

// describeNode returns a text with everything that the State says about a node.
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
		u.message = n.Retirement.describeUncancellable()
	default:
		u.cancelCandidate = n.Retirement
	}
}

// cancelRetirementIfConfirmed cancels the retirement if the key is y. Any other key closes the question.
func (u *UI) cancelRetirementIfConfirmed(key string) tea.Cmd {
	rt := u.cancelCandidate
	u.cancelCandidate = nil
	if key != "y" && key != "Y" {
		u.message = "not cancelled"
		return nil
	}
	switch now := u.whole.findRetirement(rt.UID); { // the user may have taken a long time to answer
	case now == nil:
		u.message = rt.Name + " has ended or is not shown any more"
		return nil
	case !now.IsCancellable():
		u.message = now.describeUncancellable()
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

// View implements [tea.Model]. It shows the text of RenderScreen in the terminal's alternate screen.
func (u *UI) View() tea.View {
	v := tea.NewView(u.RenderScreen())
	v.AltScreen = true
	return v
}

// RenderScreen returns the current screen as text.
func (u *UI) RenderScreen() string {
	on := u.newScreen()
	switch {
	case u.page != nil:
		return u.renderPage(on)
	case !u.hasState:
		return on.fitLine("slipway top  " + u.options.Title + "  reading the cluster ...")
	}
	return RenderState(u.state, on)
}

func (u *UI) newScreen() Screen {
	return Screen{
		Width: u.width, Height: u.height, ASCII: u.options.ASCII, Now: u.now, Title: u.options.Title, Selected: u.selected, Footer: u.buildFooter(),
		Sort: u.sort, Filter: u.filter, Pane: u.buildPane(),
	}
}

// keyHints are the keys that the last line names, the most important ones first.
var keyHints = []string{"<?> help", "<q> quit", "<enter> pods", "<e> events", "</> filter", "<w> why", "<p> plan", "<c> cancel", "<C> sort by cpu"}

// listKeyHints returns the hints for the current meaning of the keys.
func (u *UI) listKeyHints() []string {
	switch {
	case u.scrollsPane:
		return slices.Concat(keyHints[:2], []string{"<up> <down> scroll", "<tab> nodes"}, keyHints[2:])
	case u.shownPane() != noPane:
		return slices.Concat(keyHints[:2], []string{"<tab> scroll"}, keyHints[2:])
	}
	return keyHints
}

// formatKeyHints returns as many key hints as fit in a width.
func formatKeyHints(hints []string, width int) string {
	line := hints[0]
	for _, hint := range hints[1:] {
		if len(line)+2+len(hint) > width {
			break
		}
		line += "  " + hint
	}
	return line
}

// helpText is the page of the key ?.
const helpText = `up, k / down, j         select a node
PgUp, PgDn, Home, End   move faster
enter                   the pods of the selected node, and why each stays
e                       Events about nodes, NodeGroups and NodeRetirements
tab                     let the keys above scroll the open pane; tab or Esc: select a node again
w                       why: can the node be removed? Reads the cluster once, like slipway why
p                       plan: which nodes can be removed together? Reads the cluster once, like slipway plan
c                       cancel the retirement of the selected node, after a question
/                       filter by name, type, zone, group or state; /!text hides what matches
                        Enter keeps the filter, Esc removes it
N T Z A R P C M D       sort by name, type, zone, age, price, pods, cpu, memory, state; again: reverse
?                       this page
q, Ctrl-C               quit; on a page, q and Esc go back

PRICE                   price of the instance for one hour, if known
CPU, MEM                share of the allocatable resources that pods request
red                     blocked or broken
yellow                  being added or removed
cyan                    idle or underutilized, until a time
blue                    protected from removal
evictions               a column per 10 seconds, and the number of the last 10 minutes, since top began`

func (u *UI) buildFooter() []string {
	switch {
	case u.cancelCandidate != nil:
		return u.buildConfirmation()
	case u.editing:
		return []string{"/" + u.filter + "_   <enter> keep  <esc> remove"}
	case u.message != "":
		return append(u.wrapText(u.message), formatKeyHints(u.listKeyHints(), u.width))
	}
	return []string{formatKeyHints(u.listKeyHints(), u.width)}
}

func (u *UI) buildConfirmation() []string {
	rt := u.cancelCandidate
	text := fmt.Sprintf("Cancel %s (%s, %s)? Its node will be restored.", rt.Name, rt.Reason, rt.Phase)
	if rt.Reason == v1alpha1.Idle && rt.RequestedBy == nodegroup.IdleRequester {
		text += " The idle rule can request it again."
	}
	return append(u.wrapText(text), "y yes   any other key: no")
}

// pageHeight returns the number of visible lines of a page, without the title and the line with keys.
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

// wrapText breaks a text into lines that fit the screen. It indents the continuation of a line.
func (u *UI) wrapText(text string) (lines []string) {
	const indent = "    "
	width := max(u.width, len(indent)+1)
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		line = strings.TrimRight(screen.ToOneLine(line), " ")
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
