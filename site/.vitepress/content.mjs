// Prepares the repository's Markdown for VitePress: its pages, its navigation and its links. The pages stay plain Markdown
// that also works on a code host.
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import path from 'node:path'

// posix paths, so that they equal the paths of links.
const { dirname, join, normalize, basename, extname } = path.posix

// sitePath returns where the site has a page: README.md is the first page of its folder.
export function sitePath(page) {
  return basename(page) === 'README.md' ? join(dirname(page), 'index.md') : page
}

function listFiles(root, folder) {
  return readdirSync(path.join(root, folder), { withFileTypes: true })
    .filter((e) => !e.name.startsWith('.') && e.name !== 'node_modules')
    .sort((a, b) => (a.name < b.name ? -1 : 1))
    .flatMap((e) => (e.isDirectory() ? listFiles(root, join(folder, e.name)) : [join(folder, e.name)]))
}

// stageContent writes the pages of the repository at root into the folder to: the Markdown of its top folder and of docs/, other
// Markdown that pages link to, and one page for each other file or folder that they link to. It returns the paths of the
// Markdown in the repository.
export function stageContent(root, to) {
  rmSync(to, { recursive: true, force: true })
  const write = (name, data) => {
    const file = path.join(to, name)
    mkdirSync(path.dirname(file), { recursive: true })
    writeFileSync(file, data)
  }
  const files = [...readdirSync(root), ...listFiles(root, 'docs')]
  const pages = new Set(files.filter((name) => extname(name) === '.md'))
  const sources = new Set()
  // Pages show images, and may link to them at their own addresses.
  for (const name of files.filter(isImage)) {
    write(name, readFileSync(path.join(root, name)))
    write(join('public', name), readFileSync(path.join(root, name)))
  }
  // The set grows while its pages are read.
  for (const page of pages) {
    const text = readFileSync(path.join(root, page), 'utf8')
    for (const link of findLinks(text)) {
      const target = resolveLink(page, link)?.path
      if (target && !pages.has(target) && !isImage(target) && existsSync(path.join(root, target))) {
        (extname(target) === '.md' ? pages : sources).add(target)
      }
    }
    write(page, page === 'README.md' ? toLandingPage(text) : text)
  }
  for (const target of sources) {
    const isFolder = statSync(path.join(root, target)).isDirectory()
    write(sourcePage(target, isFolder), showSource(root, target, isFolder, pages))
  }
  return pages
}

// VitePress takes links to files with other extensions for links to pages.
process.env.VITE_EXTRA_EXTENSIONS = 'cast'

// isImage reports whether a file is an image or the recording of a terminal.
function isImage(name) {
  return ['.cast', '.gif', '.png', '.svg', '.webp'].includes(extname(name))
}

// findLinks returns the targets of the Markdown links and link definitions in a text, without those in code.
function findLinks(text) {
  const prose = text.replace(/^( *)(```+)[^]*?^\1\2$/gm, '').replace(/(`+)[^`]*\1(?!\()/g, 'code')
  return [...prose.matchAll(/\]\(([^)\s]+)|^ *\[[^\]]+\]: +(\S+)/gm)].map((m) => m[1] ?? m[2])
}

// resolveLink returns the path in the repository and the fragment of a link on a page, or null for other links.
export function resolveLink(page, link) {
  if (/^([a-z][a-z+.-]*:|\/\/|#)/i.test(link)) {
    return null
  }
  const [target, fragment] = link.split('#')
  const at = normalize(join(dirname(page), decodeURI(target))).replace(/\/$/, '')
  return { path: at, fragment: fragment ? '#' + fragment : '' }
}

// sourcePage returns the page that shows a file or a folder. VitePress ignores names that begin with a dot.
function sourcePage(target, isFolder) {
  return join('source', isFolder ? join(target, 'index.md') : target + '.md').replaceAll('/.', '/dot-')
}

// toSiteLink returns the absolute link within the site for a link of a page, before VitePress adds its base.
export function toSiteLink(root, pages, page, link) {
  const target = resolveLink(page, link)
  if (!target || isImage(target.path)) {
    return link
  }
  if (pages.has(target.path)) {
    return '/' + sitePath(target.path) + target.fragment
  }
  const file = path.join(root, target.path)
  if (target.path.startsWith('..') || !existsSync(file)) {
    throw new Error(`${page}: link to ${link}: no such page or file`)
  }
  return '/' + sourcePage(target.path, statSync(file).isDirectory())
}

// showSource returns a page that shows a file, or all files of a folder.
function showSource(root, target, isFolder, pages) {
  const names = isFolder ? listFiles(root, target) : [target]
  const parts = ['---', 'search: false', 'editLink: false', 'prev: false', 'next: false', '---', '', `# ${target}`]
  for (const name of names) {
    if (isFolder) {
      parts.push('', `## ${name.slice(target.length + 1)}`)
    }
    // VitePress imports the file with the language of its extension.
    parts.push('', pages.has(name) ? `[${name}](/${sitePath(name)})` : `<<< ${path.join(root, name)}`)
  }
  return parts.join('\n') + '\n'
}

// toLandingPage makes the landing page of README.md. The first paragraph becomes the large title. Everything else stays as it is.
function toLandingPage(text) {
  const at = text.search(/^## /m)
  const [head, body] = at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at)]
  const blocks = head.trim().split(/\n{2,}/)
  const take = (is) => {
    const i = blocks.findIndex((block) => is.test(block))
    return i < 0 ? '' : blocks.splice(i, 1)[0]
  }
  const name = take(/^# /).slice(2)
  const [title, ...more] = toPlainText(take(/^[A-Z]/)).split(/(?<=\.) /)
  const front = {
    layout: 'home',
    title: name,
    titleTemplate: title.replace(/\.$/, ''),
    hero: {
      text: title,
      tagline: more.join(' '),
      actions: [
        { theme: 'brand', text: 'Try it in ten minutes', link: '/docs/tutorial' },
        { theme: 'alt', text: 'Install', link: '/docs/install' },
      ],
    },
  }
  // JSON is YAML.
  return `---\n${JSON.stringify(front, null, 1)}\n---\n\n${blocks.join('\n\n')}\n\n${body}`
}

function toPlainText(markdown) {
  return markdown.replace(/!?\[([^\]]*)\]\([^)]*\)/g, '$1').replace(/[`*]/g, '').replace(/\s+/g, ' ').trim()
}

// readNavigation returns the navigation: the headings, links and order of docs/README.md, the only list of pages. Decisions
// follow, because their folder is their list.
export function readNavigation(root, pages) {
  const index = 'docs/README.md'
  const sections = []
  const seen = new Set()
  let items
  for (const line of readFileSync(path.join(root, index), 'utf8').split('\n')) {
    const heading = line.match(/^(##|###) (.+)/)
    if (heading) {
      const section = { text: toPlainText(heading[2]), collapsed: heading[1] === '###', items: [] }
      const parent = heading[1] === '##' ? sections : sections.at(-1).items
      parent.push(section)
      items = section.items
      continue
    }
    for (const [, text, link] of items ? line.matchAll(/\[([^\]]+)\]\(([^)\s]+)\)/g) : []) {
      const page = resolveLink(index, link)?.path
      if (pages.has(page) && !seen.has(page)) {
        seen.add(page)
        items.push({ text: toPlainText(text), link: '/' + sitePath(page).replace(/index\.md$/, '') })
      }
    }
  }
  const decisions = [...pages].filter((page) => page.startsWith('docs/adr/') && !seen.has(page)).sort()
  sections.push({
    text: 'Decisions', collapsed: true,
    items: decisions.map((page) => ({ text: toPlainText(readFileSync(path.join(root, page), 'utf8').match(/^# (.+)$/m)[1]), link: '/' + page })),
  })
  return [{ text: 'Overview', link: '/docs/' }, ...sections]
}

// slugify returns the anchor that code hosts give to a heading, so that a link works there and here.
export function slugify(heading) {
  return heading.trim().toLowerCase().replace(/[^\p{L}\p{N}\p{M} _-]/gu, '').replaceAll(' ', '-')
}
